// The two layers of 1D tensor parallelism whose split dimension is the vocabulary. See layers_1d.h for layout and communication.
#pragma once
#include "colossal/comm/group.h"
#include "colossal/nn/layers.h"

namespace colossal::parallel {

class VocabularyEmbedding1D : public nn::Embedding {
 public:
  VocabularyEmbedding1D(nn::Parameters& parameters, comm::Group& group, const std::string& name, int64_t vocabulary,
                        int64_t hidden, double deviation);
  at::Tensor forward(const at::Tensor& ids) override;
  nn::Parameter& weight() override { return table_; }

 private:
  comm::Group& group_;
  nn::Parameter& table_;
};

class VocabularyLossHead1D : public nn::LossHead {
 public:
  VocabularyLossHead1D(nn::Parameter& weight, comm::Group& group) : weight_(weight), group_(group) {}
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels) override;
  at::Tensor logits(const at::Tensor& hidden) override;

 private:
  nn::Parameter& weight_;
  comm::Group& group_;
};

}  // namespace colossal::parallel
