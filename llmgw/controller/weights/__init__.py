"""What can be learnt of weights before any node has them: their headers over HTTP, remembered by digest."""
