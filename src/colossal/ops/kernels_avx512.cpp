#define COLOSSAL_KERNELS avx512_kernels
#include "colossal/ops/kernel_table.h"
