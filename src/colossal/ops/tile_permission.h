// Permission to use AMX tiles. Tile registers add 8 KB to what the system saves for a thread, so Linux lets a process
// use them only after it has asked (Linux, Documentation/arch/x86/xstate.rst).
#pragma once
#include <functional>
#include <string>

namespace colossal::ops {

struct TilePermission {
  bool has_tiles = false;  ///< the processor and the system have tiles, with products of bf16 and of 8-bit codes
  std::string refusal;     ///< the system's reason for a refusal, e.g. "Operation not permitted"; empty = granted
};

/// Asks by `ask` if `has_tiles`. `ask` stands for the system call: it returns 0, or the value of errno.
TilePermission ask_for_tiles(bool has_tiles, const std::function<int()>& ask);

/// Returns whether this machine has tiles and this process may use them. The first call asks the system, for all
/// threads of the process. It must come before the first tile instruction. Thread safety: any threads may call it.
const TilePermission& tile_permission();

}  // namespace colossal::ops
