#define COLOSSAL_KERNELS avx2_kernels
#include "colossal/ops/kernel_table.h"
