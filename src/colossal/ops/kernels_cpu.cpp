#define COLOSSAL_KERNELS portable_kernels
#include "colossal/ops/kernel_table.h"
