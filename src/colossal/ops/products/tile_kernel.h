// Products with panels of bf16 numbers and of codes by tiles; see prepacked_kernels.h and tiles.h. A row of a panel has
// 128 bytes, so 16 of them are two tiles of weights as they are. A block of rows is stored by row, and up to 16 of its
// rows are a tile.
//
// In bf16 tiles multiply any number of rows, a single one too. They add in an order that vectors do not have (tiles.h),
// and a row's result must not depend on the number of rows. Sums of codes are exact in any order.
//
// Each call configures the tiles of its thread and releases them, because oneDNN uses tiles on the same threads.
#pragma once
#include "colossal/ops/products/panel_codes.h"
#include "colossal/ops/products/tiles.h"

namespace colossal::ops {
namespace {

constexpr int64_t kTileBlockRows = 2 * kMaxTileRows;
constexpr int64_t kPanelRowBytes = 4 * kOutputs;
/// Largest number of rows of codes that vectors multiply: 1 or 0, because only the layout of a single row suits vectors
/// too. Not measured yet on a processor with AMX: colossal_prepacked_bench compares this table with avx512vnni.
constexpr int64_t kVectorRowsOfCodes = 1;

// Registers: 0 to 3 hold the sums of 1 or 2 tiles of rows, 2 tiles of outputs each; 4 and 5 rows; 6 and 7 weights.
// `step_bytes` of each row are multiplied at a time.
template <int RowTiles>
inline TileShapes block_shapes(int64_t rows, int64_t step_bytes) {
  TileShapes shapes;
  for (int i = 0; i < RowTiles; ++i) {
    const int64_t here = i + 1 < RowTiles ? kMaxTileRows : rows - i * kMaxTileRows;
    shapes.set(2 * i, here, kMaxTileBytes);
    shapes.set(2 * i + 1, here, kMaxTileBytes);
    shapes.set(4 + i, here, step_bytes);
  }
  shapes.set(6, step_bytes / 4, kMaxTileBytes);
  shapes.set(7, step_bytes / 4, kMaxTileBytes);
  return shapes;
}

/// Sums of a block in fp32, row after row.
template <int RowTiles>
struct alignas(64) TileSums {
  float of[RowTiles * kMaxTileRows][kOutputs];
};

struct TilePairs {
  template <int Sums, int Left, int Right>
  static void add(Tiles& tiles) {
    tiles.add_bf16<Sums, Left, Right>();
  }
};
struct TileCodes {
  template <int Sums, int Left, int Right>
  static void add(Tiles& tiles) {
    tiles.add_codes<Sums, Left, Right>();
  }
};

template <int RowTiles>
inline void zero_sums(Tiles& tiles) {
  tiles.zero<0>(), tiles.zero<1>();
  if constexpr (RowTiles == 2) tiles.zero<2>(), tiles.zero<3>();
}

// Adds the products of a step: rows x, `pitch` bytes apart, with the rows w of a panel.
template <class Number, int RowTiles>
inline void add_step(Tiles& tiles, const char* x, int64_t pitch, const char* w) {
  tiles.load<6>(w, kPanelRowBytes), tiles.load<7>(w + kMaxTileBytes, kPanelRowBytes);
  tiles.load<4>(x, pitch);
  if constexpr (RowTiles == 2) tiles.load<5>(x + kMaxTileRows * pitch, pitch);
  Number::template add<0, 4, 6>(tiles), Number::template add<1, 4, 7>(tiles);
  if constexpr (RowTiles == 2) Number::template add<2, 5, 6>(tiles), Number::template add<3, 5, 7>(tiles);
}

// `sums` [RowTiles * kMaxTileRows][kOutputs] of 4 bytes.
template <int RowTiles>
inline void store_sums(const Tiles& tiles, void* sums) {
  char* to = static_cast<char*>(sums);
  tiles.store<0>(to, kPanelRowBytes), tiles.store<1>(to + kMaxTileBytes, kPanelRowBytes);
  to += kMaxTileRows * kPanelRowBytes;
  if constexpr (RowTiles == 2) tiles.store<2>(to, kPanelRowBytes), tiles.store<3>(to + kMaxTileBytes, kPanelRowBytes);
}

template <int RowTiles>
inline void multiply_pairs_of(const PanelProduct& p, int64_t rows) {
  const char *x = static_cast<const char*>(p.block), *w = static_cast<const char*>(p.panel);
  const int64_t pitch = p.inputs * static_cast<int64_t>(sizeof(Bf16));
  TileSums<RowTiles> sums;
  Tiles tiles(block_shapes<RowTiles>(rows, kMaxTileBytes));
  zero_sums<RowTiles>(tiles);
  int64_t at = 0;  // bytes of each row that are multiplied
  for (; at + kMaxTileBytes <= pitch; at += kMaxTileBytes)
    add_step<TilePairs, RowTiles>(tiles, x + at, pitch, w + at / 4 * kPanelRowBytes);
  if (const int64_t rest = pitch - at) {  // copied and padded with zeros, because a tile would read past rows and panel
    alignas(64) char last_x[RowTiles * kMaxTileRows][kMaxTileBytes] = {}, last_w[kMaxTileRows][kPanelRowBytes] = {};
    for (int64_t i = 0; i < rows; ++i) __builtin_memcpy(last_x[i], x + i * pitch + at, rest);
    __builtin_memcpy(last_w, w + at / 4 * kPanelRowBytes, rest / 4 * kPanelRowBytes);
    add_step<TilePairs, RowTiles>(tiles, last_x[0], kMaxTileBytes, last_w[0]);
  }
  store_sums<RowTiles>(tiles, sums.of);
  write_panel(p, rows, sums);
}

inline void multiply_pairs_by_tiles(const PanelProduct& p, int64_t rows) {
  if (rows > kMaxTileRows)
    multiply_pairs_of<2>(p, rows);
  else
    multiply_pairs_of<1>(p, rows);
}

// Returns how many inputs of a group tiles multiply at a time: the largest multiple of 8 that divides the group, at
// most 64. A group of 32 takes half a tile.
inline int64_t inputs_of_step(int64_t group) {
  int64_t step = kMaxTileBytes;
  while (group % step != 0) step -= 8;
  return step;
}

// Writes 4-bit codes of `inputs` inputs as bytes, in the layout of 8-bit codes.
inline void unpack_codes(const char* packed, int64_t inputs, char* codes) {
  for (int64_t row = 0; row < inputs / 8; ++row, codes += 2 * kPanelRowBytes)
    for (int64_t i = 0; i < kPanelRowBytes; i += kVectorBytes) {
      const PanelBytes both = load_bytes<PanelBytes>(packed + row * kPanelRowBytes + i), lower = both & 0x0F;
      const PanelBytes upper = (PanelBytes)((Words)both >> 4) & 0x0F;
      __builtin_memcpy(codes + i, &lower, sizeof lower);
      __builtin_memcpy(codes + kPanelRowBytes + i, &upper, sizeof upper);
    }
}

// Adds the products of a group, scaled, to the rows' sums.
template <int Bits>
inline void add_group_products(const PanelProduct& p, int64_t rows, int64_t g, const char* scales,
                               const int32_t (*products)[kOutputs], float (*sums)[kOutputs]) {
  static_assert(kTakesSumsAway, "tiles multiply 8-bit codes with their offset");
  for (int first = 0; first < kOutputs; first += kLanes<float>) {
    const GroupScales of_group = group_scales(p, scales, first);
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t codes = p.sums[g * rows + i];
      const Ints exact = load_bytes<Ints>(products[i] + first) + first_sum<Bits>(codes, p.minima);
      add_scaled(of_group, exact, p.scales[g * rows + i], codes, sums[i] + first);
    }
  }
}

template <int Bits, int RowTiles>
inline void multiply_codes_of(const PanelProduct& p, int64_t rows) {
  const char *x = static_cast<const char*>(p.block), *w = static_cast<const char*>(p.panel);
  const int64_t step = inputs_of_step(p.group), row_bytes = kOutputs * Bits / 8;  // of the codes of an input
  TileSums<RowTiles> sums;
  alignas(64) int32_t products[RowTiles * kMaxTileRows][kOutputs];
  alignas(64) char unpacked[kMaxTileRows * kPanelRowBytes];
  __builtin_memset(&sums, 0, sizeof sums);
  Tiles tiles(block_shapes<RowTiles>(rows, step));
  for (int64_t g = 0; g < p.inputs / p.group; ++g) {
    zero_sums<RowTiles>(tiles);
    for (int64_t at = 0; at < p.group; at += step, w += step * row_bytes) {
      if constexpr (Bits == 4) unpack_codes(w, step, unpacked);
      add_step<TileCodes, RowTiles>(tiles, x + g * p.group + at, p.inputs, Bits == 4 ? unpacked : w);
    }
    store_sums<RowTiles>(tiles, products);
    add_group_products<Bits>(p, rows, g, w, products, sums.of);
    w += kOutputs * (p.minima ? 2 : 1) * sizeof(Half);
  }
  write_panel(p, rows, sums);
}

template <int Bits>
void multiply_codes_by_tiles(const PanelProduct& p, int64_t rows) {
  if (rows <= kVectorRowsOfCodes)
    multiply_codes<Bits>(p, rows);
  else if (rows > kMaxTileRows)
    multiply_codes_of<Bits, 2>(p, rows);
  else
    multiply_codes_of<Bits, 1>(p, rows);
}

}  // namespace
}  // namespace colossal::ops
