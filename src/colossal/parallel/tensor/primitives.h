// Vectors, features and token runs over a Layout: layers are made of them (nn/vector.h, nn/features.h,
// nn/token_runs.h).
#pragma once
#include <memory>

#include "colossal/nn/features.h"
#include "colossal/nn/token_runs.h"
#include "colossal/nn/vector.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/table.h"
#include "colossal/parallel/tensor/vocabulary.h"

namespace colossal::parallel {

/// A vector stored as a Table.
class TensorVector final : public nn::Vector {
 public:
  TensorVector(nn::Parameters& parameters, const Layout& layout, const std::string& name, std::vector<int64_t> shape,
               const nn::VectorOptions& options);
  at::Tensor value() const override { return table_.value(); }
  nn::Parameter& parameter() const override { return table_.parameter(); }

 private:
  Table table_;
};

/// The features that the ranks along the columns of a Split divide: equal parts, the last ones padded.
/// Errors ("parallel"): features between blocks that do not divide.
class TensorFeatures final : public nn::Features {
 public:
  TensorFeatures(const Layout& layout, int64_t size, nn::Place place);
  at::Tensor sum(const at::Tensor& partial) const override;
  ops::RankReduction& reduction() const override { return reduction_; }

 private:
  comm::Group& ranks_;
  mutable GroupReduction reduction_;
};

/// The tokens of hidden states between blocks.
class TensorTokenRuns final : public nn::TokenRuns {
 public:
  explicit TensorTokenRuns(std::shared_ptr<const Layout> layout);
  int64_t ranks() const override;
  int64_t rank() const override;
  nn::Tokens here(const nn::ForwardContext& step) const override;
  at::Tensor sum(const at::Tensor& partial) const override;
  at::Tensor gathered(const at::Tensor& own) const override;

 private:
  std::shared_ptr<const Layout> layout_;
  comm::Group& ranks_;
};

}  // namespace colossal::parallel
