// Words for tiles, the registers of Intel's AMX: 8 registers of up to 16 rows of up to 64 bytes. Bodies of products
// (tile_kernel.h) are written in these words. Units compiled for AMX get the instructions. All others get plain C++,
// which returns the same bits and traps if the instruction would fault.
//
//   const TileShapes shapes = ...;            // of every register that is used
//   Tiles tiles(shapes);                      // configures this thread's registers; they are zero
//   tiles.load<4>(rows, pitch), tiles.load<6>(weights, pitch);
//   tiles.add_bf16<0, 4, 6>();                // register 0 += register 4 x register 6
//   tiles.store<0>(sums, pitch);
//                                             // the destructor releases the registers
//
// Only one Tiles of a thread may be alive. The process needs the system's permission (ops/tile_permission.h).
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG, TILELOADD, TDPBF16PS and
// TDPBSUD. This header is for kernel bodies, which call no inline function of std (ops/simd.h).
#pragma once
#include <cstdint>

namespace colossal::ops {
namespace {

constexpr int kMaxTileRows = 16, kMaxTileBytes = 64, kTileRegisters = 8;

/// Operand of LDTILECFG: palette 1, and the shape of each register. A register of no rows must not be used.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  ///< of a row: a multiple of 4, at most 64
  uint8_t rows[16] = {};    ///< at most 16

  void set(int tile, int64_t tile_rows, int64_t row_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    bytes[tile] = static_cast<uint16_t>(row_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
constexpr bool kTilesAreInstructions = true;

// Assembly instead of the intrinsics of <immintrin.h>: those of GCC 12 take register numbers as text, so a template
// cannot pass them, and do not tell the compiler that they read and write memory.
class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }
  ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int Tile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
  }
  template <int Tile>
  void load(const void* p, int64_t pitch) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(pitch), "i"(Tile) : "memory");
  }
  template <int Tile>
  void store(void* p, int64_t pitch) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(pitch), "i"(Tile) : "memory");
  }
  template <int Sums, int Left, int Right>
  void add_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(Left), "i"(Right));
  }
  template <int Sums, int Left, int Right>
  void add_codes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(Left), "i"(Right));
  }
};

#else
constexpr bool kTilesAreInstructions = false;

class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) : shapes_(shapes) {
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = shapes.rows[tile], bytes = shapes.bytes[tile];
      trap_unless((rows == 0) == (bytes == 0) && rows <= kMaxTileRows && bytes <= kMaxTileBytes && bytes % 4 == 0);
      trap_unless(tile < kTileRegisters || rows == 0);
    }
  }

  /// Sets a register to zero.
  template <int Tile>
  void zero() {
    trap_unless(shapes_.rows[Tile] > 0);
    __builtin_memset(registers_[Tile], 0, sizeof registers_[Tile]);
  }

  /// Reads the rows of a register from memory, `pitch` bytes apart. Rows and bytes outside its shape become zero.
  template <int Tile>
  void load(const void* p, int64_t pitch) {
    zero<Tile>();
    for (int row = 0; row < shapes_.rows[Tile]; ++row)
      __builtin_memcpy(registers_[Tile][row], static_cast<const char*>(p) + row * pitch, shapes_.bytes[Tile]);
  }

  /// Writes the rows of a register to memory, `pitch` bytes apart.
  template <int Tile>
  void store(void* p, int64_t pitch) const {
    trap_unless(shapes_.rows[Tile] > 0);
    for (int row = 0; row < shapes_.rows[Tile]; ++row)
      __builtin_memcpy(static_cast<char*>(p) + row * pitch, registers_[Tile][row], shapes_.bytes[Tile]);
  }

  /// TDPBF16PS. Adds products of bf16 pairs to sums in fp32:
  ///   sums[m][n] += left[m][2k] * right[k][2n] + left[m][2k + 1] * right[k][2n + 1]  for all k
  /// Order: the products of even inputs form one chain of fused multiply-adds from 0, in ascending k, and those of odd
  /// inputs another. Then even + odd is rounded, and last its sum with sums[m][n]. Each step rounds to nearest even.
  /// Denormal operands count as zero, and results below the normal range become zero (DAZ = FTZ = 1).
  template <int Sums, int Left, int Right>
  void add_bf16() {
    require_shapes(Sums, Left, Right);
    const int outputs = shapes_.bytes[Sums] / 4;
    for (int m = 0; m < shapes_.rows[Sums]; ++m) {
      float even[kMaxTileBytes / 4] = {}, odd[kMaxTileBytes / 4] = {};
      for (int k = 0; k < shapes_.bytes[Left] / 4; ++k) {
        const float first = bf16_at(Left, m, 2 * k), second = bf16_at(Left, m, 2 * k + 1);
        for (int n = 0; n < outputs; ++n) {
          even[n] = fused(first, bf16_at(Right, k, 2 * n), even[n]);
          odd[n] = fused(second, bf16_at(Right, k, 2 * n + 1), odd[n]);
        }
      }
      for (int n = 0; n < outputs; ++n) {
        float sum;
        __builtin_memcpy(&sum, registers_[Sums][m] + 4 * n, 4);
        sum = fused(1, sum, fused(1, even[n], odd[n]));
        __builtin_memcpy(registers_[Sums][m] + 4 * n, &sum, 4);
      }
    }
  }

  /// TDPBSUD. Adds products of four signed 8-bit codes on the left with four unsigned ones on the right to sums in 32
  /// bits, modulo 2^32:
  ///   sums[m][n] += left[m][4k + i] * right[k][4n + i]  for all k and i = 0 to 3
  template <int Sums, int Left, int Right>
  void add_codes() {
    require_shapes(Sums, Left, Right);
    for (int m = 0; m < shapes_.rows[Sums]; ++m)
      for (int n = 0; n < shapes_.bytes[Sums] / 4; ++n) {
        uint32_t sum;
        __builtin_memcpy(&sum, registers_[Sums][m] + 4 * n, 4);
        for (int k = 0; k < shapes_.bytes[Left] / 4; ++k)
          for (int i = 0; i < 4; ++i)
            sum += static_cast<uint32_t>(static_cast<int8_t>(registers_[Left][m][4 * k + i]) *
                                         registers_[Right][k][4 * n + i]);
        __builtin_memcpy(registers_[Sums][m] + 4 * n, &sum, 4);
      }
  }

 private:
  static void trap_unless(bool is_valid) {
    if (!is_valid) __builtin_trap();
  }
  void require_shapes(int sums, int left, int right) const {
    trap_unless(sums != left && left != right && sums != right && shapes_.rows[sums] > 0);
    trap_unless(shapes_.rows[sums] == shapes_.rows[left] && shapes_.bytes[sums] == shapes_.bytes[right] &&
                shapes_.bytes[left] == 4 * shapes_.rows[right] && shapes_.rows[right] > 0);
  }

  /// Returns an element of a register, widened.
  float bf16_at(int tile, int row, int index) const {
    uint16_t half;
    __builtin_memcpy(&half, registers_[tile][row] + 2 * index, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
  }

  static double without_denormals(float x) {
    const float size = x < 0 ? -x : x;
    return size < 0x1p-126f ? __builtin_copysign(0.0, x) : x;
  }

  /// Returns a * b + c, rounded once to fp32. Requires a and b of 8 significant bits, as in bf16, or a = 1. The product
  /// is exact in double. The sum is exact in double too, or one term is so small that the sum rounds to the other one.
  static float fused(float a, float b, float c) {
    const double sum = without_denormals(a) * without_denormals(b) + without_denormals(c);
    const double size = sum < 0 ? -sum : sum;
    // Results that round to less than 2^-126 with 24 bits, whatever the exponent, are below the normal range.
    if (size < 0x1p-126 - 0x1p-151) return static_cast<float>(__builtin_copysign(0.0, sum));
    return static_cast<float>(sum);
  }

  TileShapes shapes_;
  alignas(64) uint8_t registers_[kTileRegisters][kMaxTileRows][kMaxTileBytes] = {};
};
#endif

}  // namespace
}  // namespace colossal::ops
