// The matrices of the low-rank adapters of one weight on this rank, and the products that both kinds of wrappers of
// nn/low_rank.h make with them.
//
//   at::Tensor narrow = matrices.narrowed(x);            // s x At of all parts, [T, parts * r]
//   matrices.add_widened(y, narrow);                     // y += narrow Bt, each part in its outputs
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "colossal/nn/dropout.h"
#include "colossal/nn/low_rank.h"

namespace colossal::nn {

/// One adapter. Rows [row, row + count) of the stored block of the weight are rows [own, own + count) of B and m.
struct LowRankPiece {
  Parameter &a, &b;
  Parameter* m;          ///< null = no magnitudes
  int64_t first_output;  ///< Product::first_outputs() of B and m
  int64_t row, own, count;
  double scale;
  int64_t rank() const { return a.spec.shape[0]; }
  /// Returns A [r, in]. That of a convolution has the inputs of all taps, tap by tap, as nn::convolved() has the
  /// weight.
  at::Tensor rows_of_a() const;
  /// Returns such rows, a gradient, as A is stored.
  at::Tensor as_a(const at::Tensor& rows) const;
};

/// Operations with the matrices, without gradients and without communication. Tensors of rows have one row per token.
class LowRankMatrices {
 public:
  LowRankMatrices(std::vector<LowRankPiece> pieces, const LowRank& options, uint64_t site,
                  const tensor::MeshCoordinates& coordinates);

  bool has_magnitudes() const { return options_.magnitudes; }
  bool has_dropout() const { return options_.dropout > 0; }
  /// Return the values of the product inside, followed by those of the pieces: of each A, B and m.
  std::vector<Parameter*> parameters(std::vector<Parameter*> inside) const;
  std::vector<int64_t> first_outputs(std::vector<int64_t> inside) const;

  /// Returns all A, one below the other: [ranks, in], where `ranks` is the sum of the ranks of all pieces.
  at::Tensor a() const;
  /// Returns s x At: [T, ranks]. `by_row`: packs the matrices for the product, so that the result of a row does not
  /// depend on the other rows (ops/products/prepacked_matrix.h).
  at::Tensor narrowed(const at::Tensor& x, bool by_row) const;
  /// Adds narrow Bt to y [T, out]; `by_row` as above.
  void add_widened(at::Tensor& y, const at::Tensor& narrow, bool by_row) const;
  /// Returns s dy B: [T, ranks].
  at::Tensor narrowed_gradient(const at::Tensor& dy) const;
  /// Returns narrow A: [T, in], added to `sum` if it is defined.
  at::Tensor widened_gradient(const at::Tensor& narrow, at::Tensor sum) const;
  /// Adds s B A to `weight`, a block of the weight.
  void add_to(at::Tensor& weight) const;

  /// Returns the changes of the magnitudes of all `rows` rows of the block in `dtype`; 0 where no piece is.
  at::Tensor magnitudes(int64_t rows, at::ScalarType dtype) const;
  /// Returns the squares of the norms of W + s B A [rows] of this rank's inputs. `squares` has those of W, and `dot`
  /// returns A Wt [ranks, rows].
  at::Tensor squares(const at::Tensor& squares, const std::function<at::Tensor(const at::Tensor& a)>& dot) const;

  /// Appends the gradients of each piece, in the order of parameters(). `of` returns those of A, of the piece's rows of
  /// B and, with magnitudes, of m; B and m are padded to all of their rows. `first`: of its rows of a().
  struct OfPiece {
    at::Tensor a, b, m;
  };
  void append(std::vector<at::Tensor>& own, const std::function<OfPiece(const LowRankPiece&, int64_t first)>& of) const;

  /// Returns where the tokens of x [T, in] are in the batch of the running step, as a tensor that autograd can keep;
  /// undefined = nothing is dropped. Errors ("adapter"): no running step, or one without a batch.
  at::Tensor places(const at::Tensor& x) const;
  /// Returns x [T, in] with dropout; x itself if `places` is undefined. The gradient is the same function of dy.
  at::Tensor dropped(const at::Tensor& x, const at::Tensor& places) const;

 private:
  at::Tensor b_of(const LowRankPiece& piece) const;

  std::vector<LowRankPiece> pieces_;
  LowRank options_;
  uint64_t site_;
  int64_t features_;  // logical inputs of the weight
  struct Run {
    Range logical;
    int64_t local;
  };
  std::vector<Run> runs_;  // the inputs of this rank
};

}  // namespace colossal::nn
