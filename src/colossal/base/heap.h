// How this process keeps memory that it has freed.
#pragma once

namespace colossal {

/// Makes malloc keep what is freed instead of handing it back to the system: a training step allocates the same large tensors again and again,
/// and each fresh page costs a fault and a clearing by the kernel. The process then stays at its peak size. Called once, by a program, before
/// it allocates much. No effect with an allocator other than glibc's.
void keep_freed_memory();

}  // namespace colossal
