#include "colossal/ops/tile_permission.h"

#include <system_error>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace colossal::ops {
namespace {

#if defined(__x86_64__) && defined(__linux__)
bool processor_has_tiles() {
  __builtin_cpu_init();  // the builtins also check by XGETBV that the system saves tile registers
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8");
}

int ask_the_system_for_tiles() {
  // Numbers of <asm/prctl.h>, which lacks them in headers older than Linux 5.16.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
}
#else
bool processor_has_tiles() { return false; }
int ask_the_system_for_tiles() { return 0; }
#endif

}  // namespace

TilePermission ask_for_tiles(bool has_tiles, const std::function<int()>& ask) {
  TilePermission permission{.has_tiles = has_tiles};
  if (!has_tiles) return permission;
  if (const int error = ask()) permission.refusal = std::generic_category().message(error);
  return permission;
}

const TilePermission& tile_permission() {
  static const TilePermission permission = ask_for_tiles(processor_has_tiles(), ask_the_system_for_tiles);
  return permission;
}

}  // namespace colossal::ops
