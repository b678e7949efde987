"""What files may hold, trees of tensors in one file, and writes that survive a crash."""
