// Matrices in NF4, the 4-bit format of QLoRA (Dettmers et al., arXiv:2305.14314) and bitsandbytes. Frozen weights of
// fine-tuning are stored in it; ops/products/placed_matrix.h multiplies with them.
//
//   const ops::Nf4Weight w = ops::quantize_nf4(weight, {.double_quantized = true});        // [out, in]
//   const at::Tensor near = ops::dequantize(w, at::kBFloat16);                             // [out, in]
//   const ops::Nf4Weight shard = w.part({.row = 0, .rows = w.outputs() / 2, .columns = w.inputs()});
//
// Format: the elements of a matrix, row after row as its folder stores them, are cut into blocks of 64. A block has its
// largest magnitude ("absmax") in fp32. The code of an element is the one of 16 levels (nf4_levels.h) that is nearest
// to element / absmax. Double quantization stores absmax less the mean of all as a code of 8 bits, in blocks of 256
// with an fp32 maximum each. An element then takes 4.127 bits instead of 4.5.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::ops {

/// A rectangle of a matrix [out, in]: rows `row`, `row` + `row_step` and so on, and neighbouring columns.
struct MatrixPart {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int64_t row_step = 1;
};

/// Which elements of which folder's matrix a weight has, and how they are stored. It has no tensor, so a layer knows
/// the memory of a weight before it has one.
struct Nf4Form {
  int64_t rows = 0, columns = 0;  ///< sizes of the matrix as the folder stores it, or of the part of it
  int64_t first = 0;              ///< index of the first element in the flattened matrix of the folder
  int64_t stride = 0;             ///< elements from row to row there
  bool double_quantized = true;
  bool transposed = false;  ///< true: the weight [out, in] is the transpose of the matrix [rows, columns] (GPT-2)

  /// Returns the form of a whole matrix [rows, columns].
  static Nf4Form whole(int64_t rows, int64_t columns, bool double_quantized, bool transposed = false);
  /// Returns the form of a part of this weight. Errors ("nf4"): it is empty or reaches outside; a row_step other than 1
  /// if `transposed`.
  Nf4Form part(const MatrixPart& part) const;

  int64_t outputs() const { return transposed ? columns : rows; }
  int64_t inputs() const { return transposed ? rows : columns; }
  /// Number of blocks that are stored: those that hold the elements. Blocks of rows that are not neighbours in the
  /// folder are stored row by row, all rows with as many blocks as the longest needs.
  int64_t blocks() const;
  /// Number of bytes of the weight, a multiple of 16.
  int64_t bytes() const;
  /// Errors ("nf4"): sizes that are not positive or too large, a stride below the number of columns.
  void check() const;
};

/// A weight [out, in] in NF4. All of it is one tensor of bytes, so that it can be the value of a parameter, which is
/// sharded, gathered, moved and saved like any other.
///
/// Layout: the codes, 32 bytes a block; then absmax, fp32 [blocks]. Double: then the codes of absmax, uint8 [blocks],
///         and up to 3 bytes of padding; in fp32 the maxima of these codes' blocks, the values of the 256 codes, and
///         the mean.
/// Memory: Nf4Form::bytes(), n / 2 for n elements plus n / 16, or n / 64 and a kilobyte. A part whose first column and
///         number of columns are no multiples of 64, of a folder's rows, has up to one block more per row than that.
class Nf4Weight {
 public:
  /// Takes bytes in the layout above, as a view. Errors ("nf4"): another dtype or number; bytes of a CPU that are not
  /// aligned to 4.
  Nf4Weight(const Nf4Form& form, at::Tensor bytes);

  const Nf4Form& form() const { return form_; }
  const at::Tensor& bytes() const { return bytes_; }
  int64_t outputs() const { return form_.outputs(); }
  int64_t inputs() const { return form_.inputs(); }

  /// Return views of the bytes: uint8 [blocks, 32]; fp32 or, if double, uint8 [blocks]; fp32 [maxima], [256], [1].
  at::Tensor codes() const;
  at::Tensor stored_absmax() const;
  at::Tensor nested_absmax() const;
  at::Tensor nested_values() const;
  at::Tensor nested_mean() const;
  /// Returns the largest magnitudes of the stored blocks, fp32 [blocks]. Rounded as bitsandbytes does, bit by bit.
  at::Tensor absmax() const;

  /// Returns a copy of the blocks that hold a part. Its elements have the values that they have here, to the bit. Cost:
  /// a copy per row, or one copy for whole rows. Errors: the errors of Nf4Form::part().
  Nf4Weight part(const MatrixPart& part) const;
  /// Returns the weight on another device.
  Nf4Weight to(at::Device device) const;

 private:
  Nf4Form form_;
  at::Tensor bytes_;
};

struct Nf4Options {
  bool double_quantized = true;
  bool transposed = false;  ///< the matrix is [in, out]: the weight is its transpose
};

/// Quantizes a matrix, given as its folder stores it, of any floating dtype, to the nearest codes. If two are equally
/// near, it takes the lower one. fp64 is rounded to fp32 first.
/// Numbers: element / absmax is element * (1 / absmax) in fp32, so codes are those of bitsandbytes, bit by bit. The
///          codes of absmax are the nearest ones; those of bitsandbytes on a CPU may be the second nearest if the
///          distances differ by less than 2^-15 of the block's maximum, because it looks them up in a table.
/// Devices: kernels of each instruction set on the CPU; LibTorch's operators elsewhere, which wait for the device.
/// Errors ("nf4"): no matrix or no elements. ("quantization"): elements that are not finite.
Nf4Weight quantize_nf4(const at::Tensor& matrix, const Nf4Options& options);

/// The numbers of a folder's matrix in NF4, as bitsandbytes stores them.
struct Nf4Codes {
  at::Tensor codes;          ///< uint8 [ceil(n / 2)], the first of two elements in the upper half
  at::Tensor absmax;         ///< fp32 [ceil(n / 64)]; double: uint8
  at::Tensor nested_absmax;  ///< double: fp32 [ceil(blocks / 256)]; undefined = single
  at::Tensor nested_values;  ///< double: fp32 [256]
  double nested_mean = 0;    ///< double
};
/// Returns a whole weight from its numbers, a copy on the CPU. Errors ("nf4"): other shapes or dtypes.
Nf4Weight nf4_weight(const Nf4Form& form, const Nf4Codes& numbers);

/// Returns the values of the 256 codes of absmax, in ascending order: those of bitsandbytes' "dynamic" type, to the
/// bit. They are 0, 1 and for e = 0 to 6 the middles of 2^e equal parts of [0.1, 1], times +-10^(e - 6).
const std::vector<float>& nf4_nested_values();

/// Returns the values of the weight, or of a part, [rows, columns] in `type`: level * absmax in fp32, rounded once.
/// The result is contiguous; if the form is transposed, its transpose is.
/// Speed: a part is decoded row by row of the matrix (column by column of the weight if the form is transposed). Runs
///        that begin and end between blocks are fastest: multiples of 64 from the folder's first element on. Others
///        decode one or two blocks more per run.
/// Errors ("nf4"): the errors of Nf4Form::part(); row_step other than 1; another type than fp64, fp32, bf16 and fp16.
at::Tensor dequantize(const Nf4Weight& weight, at::ScalarType type);
at::Tensor dequantize(const Nf4Weight& weight, at::ScalarType type, const MatrixPart& part);

/// Decodes rows [row, row + out.size(0)) and columns [column, column + out.size(1)) of the matrix as the folder stores
/// it into `out`, whose rows are dense. Numbers are rounded to `rounds_to`, the dtype of `out` or a narrower one.
/// Errors ("nf4"): a part that reaches outside; another device than that of the weight.
void decode_nf4_(const at::Tensor& out, const Nf4Weight& weight, int64_t row, int64_t column, at::ScalarType rounds_to);

/// References by LibTorch's operators, for any device.
Nf4Weight quantize_nf4_reference(const at::Tensor& matrix, const Nf4Options& options);
void decode_nf4_reference_(const at::Tensor& out, const Nf4Weight& weight, int64_t row, int64_t column,
                           at::ScalarType rounds_to);

}  // namespace colossal::ops
