// The softmax statistics of slices of logits, and the gradient of log-probabilities and entropies: the elementwise part
// of ops/token_scores.h.
//
//   ScoreSlice slice(logits, labels, range, 1 / temperature);
//   slice.add_to(statistics);                            // once for each part of the vocabulary
//   slice.differentiate({.largest = m, .log_sums = s, .of_value = gradient});   // the logits become their gradient
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/projection.h"

namespace colossal::ops {

/// Logits [t, columns] in fp32 or fp64, which it overwrites, and the labels [t] of their rows. Rows with kIgnoredLabel
/// add nothing, and their gradient is 0.
class ScoreSlice {
 public:
  /// Errors ("token_scores"): labels on another device.
  ScoreSlice(at::Tensor logits, const at::Tensor& labels, const VocabularyRange& range, double scale);

  /// Sums over the words seen so far, of z = scale * logit: [t] each, contiguous.
  struct Statistics {
    at::Tensor largest;  ///< largest z; before the first words the lowest number of the dtype
    at::Tensor sums;     ///< sum of e^(z - largest)
    at::Tensor targets;  ///< z of the label; 0 until it was seen
    at::Tensor moments;  ///< sum of e^(z - largest) (z - largest); undefined if no entropy is wanted
  };
  /// Adds the words of this slice. Writes in place.
  void add_to(const Statistics& statistics) const;

  /// Results over all words, and the gradients of the two scores: [t] each, contiguous.
  struct Gradients {
    at::Tensor largest, log_sums, entropies;
    at::Tensor of_value, of_entropy;  ///< undefined = 0
  };
  /// Replaces the logits by their gradient; columns of padding get 0.
  void differentiate(const Gradients& gradients) const;

 private:
  template <class Run>
  void run(Run&& step) const;
  bool has_kernels() const;
  void add_by_aten(const Statistics& statistics) const;
  void differentiate_by_aten(const Gradients& gradients) const;

  at::Tensor logits_, labels_;
  VocabularyRange range_;
  double scale_;
};

}  // namespace colossal::ops
