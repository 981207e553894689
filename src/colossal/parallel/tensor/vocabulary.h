// The two layers whose long dimension is the vocabulary, over a Layout.
#pragma once
#include "colossal/nn/layers.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/outputs.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// Sums and maxima over a group, for operators that know no collectives.
class GroupReduction : public ops::RankReduction {
 public:
  explicit GroupReduction(comm::Group& group) : group_(group) {}
  void max(at::Tensor& x) override;
  void sum(at::Tensor& x) override;

 private:
  comm::Group& group_;
};

/// A table [V, H] cut as layout.embedding, V padded to equal parts.
///
/// Each rank looks up, among the ids of all ranks that share its columns of the table, those words that it has; the sum
/// over the ranks that split V gives every token its row, and each rank keeps the tokens that are its own.
/// Communication: 1D one all_reduce of B*S*H, with sequence one reduce_scatter of it; 2D one reduce_scatter of
///                B*S*H/q (2.5D: of each depth's rows); 3D one all_gather of V*H/l^2 and one reduce_scatter of
///                B*S*H/l^2; backward: none of an all_reduce, otherwise as forward the other way round.
class VocabularyEmbedding : public nn::Embedding {
 public:
  VocabularyEmbedding(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t vocabulary,
                      int64_t hidden, double deviation);
  at::Tensor forward(const at::Tensor& ids, const nn::Step& step) override;
  nn::Parameter& weight() override { return table_; }

 private:
  std::shared_ptr<const Layout> layout_;
  nn::Parameter& table_;
  GatheredTokens ids_;            // that this rank looks up: of all ranks that split V
  comm::Group &words_, &pieces_;  // ranks that split V, and that keep pieces of a part
  int64_t room_;
};

/// Projection to the vocabulary by layout.expand and cross entropy; a tied weight whose tiles lie the other way round
/// (2D) is exchanged with the rank mirrored at the diagonal first.
///
/// Communication: the projection's products a slice of tokens, all of them in forward (gradients are computed along
///                with the loss; with sequence a slice of each rank's tokens is gathered, and its gradient scattered);
///                per slice an all_reduce of a maximum and of 2 sums a token over the ranks that split V; one
///                all_reduce of the loss over those that split tokens inside. Mirrored tiles: V*H/q^2 elements sent
///                forward and backward by ranks off the diagonal. In fp16 messages of gradients are fp32: they leave
///                before their factor is known. found(): per slice an all_gather of the logits over the ranks that
///                split V, and one all_reduce of the count over those that split tokens inside.
///                log_probabilities(): per slice the product's forward, and all_reduces of a maximum and of 2 sums per
///                token over the ranks that split V. Backward repeats these and adds the product's backward. At the end
///                joined() of one value per token.
class VocabularyLossHead : public nn::LossHead {
 public:
  VocabularyLossHead(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden,
                     int64_t vocabulary, const nn::LmHeadOptions&);
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const nn::Step& step) override;
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const nn::Step& step) override;
  at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& labels, const nn::Step& step) override;
  at::Tensor logits(const at::Tensor& hidden, const nn::Step& step) override;

 private:
  at::Tensor weight() const;
  at::Tensor bias() const { return bias_ ? bias_->value() : at::Tensor(); }
  /// Labels of the tokens whose logits this rank has a part of, as the projection gathers them: [ranks, tokens of
  /// each].
  at::Tensor own_labels(const at::Tensor& labels, const nn::Step& step) const;
  /// How many tokens of each rank at once, of such labels, keep a slice of logits with `columns` small.
  int64_t slice_of(const at::Tensor& own_labels, int64_t columns) const;

  std::shared_ptr<const Layout> layout_;
  nn::Parameter& weight_;
  std::optional<Table> bias_;  // cut as the logits are
  bool is_mirrored_;
  std::shared_ptr<const nn::Product> logits_product_;
  SequenceOrder order_;
  int64_t room_;          // local columns of the logits, padding included
  double soft_cap_;       // of nn::LmHeadOptions
  at::Device slices_of_;  // whose memory says how many logits there are at a time
};

/// Projection to a few classes, whole on each rank that splits features. It reads one token of each row.
class TensorClassifier : public nn::LossHead {
 public:
  TensorClassifier(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden,
                   int64_t classes, double deviation);
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const nn::Step& step) override;
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const nn::Step& step) override;
  at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& labels, const nn::Step& step) override;
  at::Tensor logits(const at::Tensor& hidden, const nn::Step& step) override;

 private:
  /// `x`, or zeros where this rank does not have the first token of each row.
  at::Tensor counted(const at::Tensor& x, const nn::Step& step) const;

  std::shared_ptr<const Layout> layout_;
  TensorOutputs classes_;
};

}  // namespace colossal::parallel
