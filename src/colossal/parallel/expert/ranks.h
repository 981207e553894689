// The ranks of a mesh among which a mixture of experts is divided (nn/expert_ranks.h): the ranks along the axis
// "expert", times those of the tensor mode unless these split each expert (Layout::splits_experts).
//
//   nn::make_experts(parameters, reports, "blocks.0.mlp", 64, options, std::make_shared<MeshExpertRanks>(layout));
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/compression.h"
#include "colossal/nn/expert_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// Returns the format of compressed hidden states: blocks of 128 features, or of all features if there are fewer.
comm::Compression row_compression(int64_t hidden);

/// Tokens:  each rank routes the tokens that only it has. If ranks hold the same hidden states (1D, generation), each
///          routes a run of them; if they split features (2D, 2.5D, 3D), each gets the whole features of a run of the
///          tokens. With splits_experts all ranks of a tensor group route all of their tokens.
/// Sends:   enter(): with the same hidden states nothing, and an all_gather of T x hidden in backward; with split
///          features an all_to_all of T x hidden_local, (q-1)/q of it, in both; with splits_experts an all_reduce in
///          backward (in the sequence form an all_gather, and a reduce_scatter in backward). leave(): the opposite.
/// Rows:    exchanges are all_to_all among the ranks with other experts; with Layout::expert_node among those of a node
///          or those at one position in the nodes, which are neighbours in the order of expert_axes(). With
///          Layout::compresses_tokens, rows that may be rounded travel as e4m3 with an fp32 scale, a power of two, for
///          every 128 features: row_compression(). A row that stays on its rank is exact. A row that makes two hops is
///          rounded once, because rounded values are numbers of the format.
/// Order:   every rank calls the same collectives in the same order, whatever the router chooses.
class MeshExpertRanks final : public nn::ExpertRanks {
 public:
  /// Makes the groups, which is collective; sends nothing. Errors ("experts"): splits_experts with split features; an
  /// expert_node that does not divide ranks().
  explicit MeshExpertRanks(std::shared_ptr<const Layout> layout);

  int64_t ranks() const override { return experts_->size(); }
  int64_t rank() const override { return experts_->rank(); }
  at::Tensor enter(const at::Tensor& x) const override;
  at::Tensor leave(const at::Tensor& y, const at::Tensor& like) const override;
  at::Tensor positions(const at::Tensor& x, const nn::ForwardContext& step, int64_t& tokens) const override;
  int64_t node() const override { return layout_->expert_node; }
  Arrival begin_exchange(const at::Tensor& rows, const std::vector<int64_t>& out_rows,
                         const std::vector<int64_t>& in_rows, Among among, bool may_round) const override;
  at::Tensor sum(at::Tensor x) const override;
  int64_t copies() const override { return features_->size(); }
  bool adds_bias() const override { return features_->rank() == 0; }
  std::vector<std::string> expert_axes() const override { return expert_axes_; }
  std::vector<std::string> feature_axes() const override { return feature_axes_; }
  std::vector<std::string> token_axes() const override { return tensor_axes_; }

 private:
  std::shared_ptr<const Layout> layout_;
  std::vector<std::string> tensor_axes_, expert_axes_, feature_axes_;
  bool gathers_ = false;          // with splits_experts: ranks hold other tokens of the sequence outside
  comm::Group* experts_;          // ranks with other experts
  comm::Group* node_ = nullptr;   // those of this rank's node
  comm::Group* nodes_ = nullptr;  // those at this rank's position in each node
  comm::Group* features_;         // ranks that split each expert
  comm::Group* columns_;          // ranks that split the features of hidden states
  comm::Group* same_;             // ranks that hold the same hidden states, of which each routes a run
  comm::Group* others_;           // ranks that route other tokens
};

}  // namespace colossal::parallel
