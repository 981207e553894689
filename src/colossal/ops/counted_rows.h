// The rows of a head's input whose label counts. Products of a head skip all others: prompts, padding, tokens that are
// not masked.
//
//   const ops::CountedRows rows(labels);                           // [T]; ops::kIgnoredLabel where no loss is wanted
//   const at::Tensor values = f(rows.of(hidden), rows.labels());   // [m, H] and [m]
//   return rows.put_back(values);                                  // [T], 0 elsewhere
//
// If a product gathers the rows of n ranks, it needs equally many from each. All ranks then pass the labels of all,
// [n, T], and their own index; ranks with fewer rows than the longest take rows of zeros, which count nothing.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::ops {

class CountedRows {
 public:
  /// `labels`: int64 [T], or [n, T] for n ranks, of which this is number `rank`. `rows`: number of rows that each rank
  /// takes, at least as many as any of them counts; -1 = the largest count of `labels`. If all labels count, all rows
  /// are taken as they are, and nothing is copied.
  ///
  /// Labels on meta count, all of them. So do those on an accelerator during a graph capture (tensor/graph.h), because
  /// reading them would wait for the device; otherwise the host waits for them once.
  explicit CountedRows(const at::Tensor& labels, int64_t rank = 0, int64_t rows = -1);

  /// Returns true if rows are left out, or replaced by zeros.
  bool chooses() const { return indices_.defined(); }
  /// Returns this rank's rows of x [T, H]: [m, H]. Differentiable; the gradient of a row that is left out is 0.
  at::Tensor of(const at::Tensor& x) const;
  /// Returns the labels of the rows taken: [m] or [n, m]. Rows of zeros have kIgnoredLabel.
  const at::Tensor& labels() const { return labels_; }
  /// Returns values [m] or [n, m] at the places of their rows, and 0 elsewhere: [T] or [n, T]. Differentiable.
  at::Tensor put_back(const at::Tensor& values) const;

 private:
  int64_t size_, taken_ = 0;    // T, m
  std::vector<int64_t> sizes_;  // sizes of the labels as given
  at::Tensor labels_;
  at::Tensor indices_;  // indices of counted rows among n * T, by rank; undefined = all rows
  at::Tensor places_;   // their indices among n * m
  at::Tensor own_;      // indices of this rank's rows, among T
};

/// Returns the number of labels that count in each row of `labels` [n, T], as int64 [n] on the host; undefined if
/// CountedRows takes all rows without reading labels.
at::Tensor counts_of(const at::Tensor& labels);

}  // namespace colossal::ops
