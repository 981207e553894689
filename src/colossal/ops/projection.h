// The products of the projection to a vocabulary, a slice of tokens at a time. Two operators share them:
// linear_cross_entropy (ops/cross_entropy.h) and linear_token_scores (ops/token_scores.h).
//
//   ops::LocalProjection projection(256, weight, wide);                // no more than 256 tokens per slice
//   const at::Tensor logits = projection.logits(hidden.narrow(0, 0, 256), weight);
//   projection.gradients(logits_gradient, &dhidden, &dweight);         // for the last slice
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

/// Label of tokens that losses and scores skip.
inline constexpr int64_t kIgnoredLabel = -100;

/// Vocabulary indices of the local rows of the projection.
struct VocabularyRange {
  int64_t first = 0;   ///< vocabulary index of local row 0
  int64_t valid = -1;  ///< number of local rows in the vocabulary; later rows are padding outside the softmax; -1 = all
};

/// The three products of the projection, for a tensor-parallel layout whose operands are sharded so that a rank cannot
/// multiply them alone.
struct Projection {
  virtual ~Projection() = default;
  /// Computes the logits of a slice of t rows of `hidden`: [t, columns], columns >= the number of valid words. If the
  /// layout moves rows between ranks, they are the logits of other t rows, and the caller passes the labels of those
  /// rows. If it gathers the slices of n ranks, they are [n * t, columns] in rank order.
  virtual at::Tensor logits(const at::Tensor& hidden, const at::Tensor& weight) = 0;
  /// Computes gradients from d(logits) of the slice that logits() computed last. Writes dhidden [t, .], and adds to
  /// dweight. A null pointer skips that gradient. All tensors are fp64 for fp64 weights, else fp32. If the incoming
  /// gradient of a loss is not multiplied in yet, values may not fit fp16. Rounding to bf16 on the way affects only a
  /// slice's contribution, not the sum.
  virtual void gradients(const at::Tensor& logits_gradient, at::Tensor* hidden, at::Tensor* weight) = 0;
};

/// The products of one process, in buffers that all slices share. On accelerators the number of columns of narrow
/// dtypes is padded to a multiple of 64, because cuBLAS multiplies odd numbers of them several times slower.
class LocalProjection final : public Projection {
 public:
  /// `options`: the wide dtype and the device of the logits. `weight` is the largest one that use() will choose.
  LocalProjection(int64_t tokens, const at::Tensor& weight, const at::TensorOptions& options);
  /// Makes the next products those of `weight`, for instance of the rows of a part of the vocabulary.
  void use(const at::Tensor& weight);
  /// Computes the logits in the shared buffer, for the weight of use(). They are valid until the next call.
  at::Tensor logits(const at::Tensor& hidden, const at::Tensor&) override;
  void gradients(const at::Tensor& logits_gradient, at::Tensor* hidden, at::Tensor* weight) override;

 private:
  at::Tensor narrowed(const at::Tensor& logits_gradient);

  at::ScalarType type_;  // dtype of the weight as the caller gave it
  int64_t columns_ = 0;  // rows of the caller's weight
  at::Tensor weight_, buffer_, rounded_, hidden_;
};

/// Returns the number of rows per slice if `tokens` rows are split into equal slices. The fp32 logits of a slice,
/// `columns` per row, take about 64 MiB, on accelerators 512 MiB.
int64_t slice_tokens(int64_t tokens, int64_t columns, at::Device device = at::kCPU);

/// Checks the arguments of an operator over a projection, before any reduction; `component` names it in messages.
/// `whole`: no other rank has words. `local`: one process has the operands, so labels are [T] and sizes must fit.
/// Errors: shapes or dtypes that do not fit; a label that is neither kIgnoredLabel nor a vocabulary index >= 0, of a
///         whole vocabulary below its size. Values of labels on an accelerator are not checked.
void check_projected(const char* component, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& labels, const VocabularyRange& range, bool whole, bool local, double soft_cap);

}  // namespace colossal::ops
