"""Virtual GPUs: the strings of HAMi and of Volcano's vGPU, which have one runtime."""
