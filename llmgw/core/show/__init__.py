"""What people are shown, as text and as rows. Decides nothing."""
