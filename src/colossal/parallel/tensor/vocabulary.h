// The two layers over a Layout whose long dimension is the vocabulary.
#pragma once
#include <memory>
#include <optional>

#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/ops/counted_rows.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/linear.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// Sums and maxima over a group, for operators that cannot call collectives.
class GroupReduction : public ops::RankReduction {
 public:
  explicit GroupReduction(comm::Group& group) : group_(group) {}
  void max(at::Tensor& x) override;
  void sum(at::Tensor& x) override;

 private:
  comm::Group& group_;
};

/// A table [V, H] split as layout.embedding, with V padded to equal parts.
///
/// Each rank looks up the ids of all ranks that share its columns of the table, as far as it holds their rows. The sum
/// over the ranks that split V gives every token its row, and each rank keeps its own tokens.
/// Communication: 1D one all_reduce of B*S*H, with sequence one reduce_scatter of it; 2D one reduce_scatter of
///                B*S*H/q (2.5D: of each depth's rows); 3D one all_gather of V*H/l^2 and one reduce_scatter of
///                B*S*H/l^2. Backward: nothing for an all_reduce, otherwise the same in the opposite direction.
class VocabularyEmbedding : public nn::Embedding {
 public:
  VocabularyEmbedding(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t vocabulary,
                      int64_t hidden, double deviation);
  at::Tensor forward(const at::Tensor& ids, const nn::ForwardContext& step) override;
  nn::Parameter& weight() override { return table_; }

 private:
  std::shared_ptr<const Layout> layout_;
  nn::Parameter& table_;
  GatheredTokens ids_;            // ids that this rank looks up, from all ranks that split V
  comm::Group &words_, &pieces_;  // ranks that split V, and ranks that store shards of a part
  int64_t room_;
};

/// Projection to the vocabulary by layout.expand, and cross entropy. A tied weight whose tiles are transposed on the
/// grid (2D) is first exchanged with the rank mirrored at the diagonal.
///
/// Communication: the projection's products for each slice of tokens, all of them in forward, because gradients are
///                computed together with the loss. With sequence, a slice of each rank's tokens is gathered, and its
///                gradient scattered. Per slice an all_reduce of a maximum and of 2 sums per token over the ranks that
///                split V; one all_reduce of the loss over the ranks that split tokens inside. Mirrored tiles: V*H/q^2
///                elements sent forward and backward by ranks off the diagonal. In fp16, messages of gradients are
///                fp32, because they are sent before their factor is known. found(): per slice an all_gather of the
///                logits over the ranks that split V, and one all_reduce of the count over the ranks that split tokens
///                inside.
///                scores(): per slice the product's forward. Over the ranks that split V once an all_reduce of a
///                maximum and one of 2 sums per token, 3 with entropies. Backward: the product's forward again, and its
///                backward. At the end joined() of one value per token and score.
///
/// Rows of scores(): those without a label are left out before the product. Each rank that the product joins takes as
///                many as the one with most labels, filled up with zeros; every rank sees the labels of all, so nothing
///                is sent for it. In 3D all rows are multiplied: an expand gathers the rows of one axis and scatters
///                them along another, by equal blocks of each rank's rows, so a row that leaves one rank's block would
///                move the rows of others.
class VocabularyLossHead : public nn::LossHead {
 public:
  VocabularyLossHead(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden,
                     int64_t vocabulary, const nn::LmHeadOptions&);
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override;
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override;
  ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step,
                          const ops::ScoreOptions& options) override;
  at::Tensor logits(const at::Tensor& hidden, const nn::ForwardContext& step) override;

 private:
  at::Tensor weight() const;
  at::Tensor bias() const { return bias_ ? bias_->value() : at::Tensor(); }
  /// Returns the labels of the tokens of which this rank has a part of the logits: [ranks, tokens of each]. They are
  /// in the order in which the projection gathers the tokens.
  at::Tensor own_labels(const at::Tensor& labels, const nn::ForwardContext& step) const;
  /// Returns the rows of own_labels() `own` that the products of scores() need; none = all of them, because the product
  /// moves rows (3D), or the labels cannot be read.
  std::optional<ops::CountedRows> counted_rows(const at::Tensor& labels, const at::Tensor& own,
                                               const nn::ForwardContext& step) const;
  /// Returns the number of tokens per rank in a slice of own_labels(), such that a slice of logits with `columns`
  /// columns is small; at least 1.
  int64_t slice_of(const at::Tensor& own_labels, int64_t columns) const;

  std::shared_ptr<const Layout> layout_;
  nn::Parameter& weight_;
  std::optional<Table> bias_;  // split like the logits
  bool is_mirrored_;
  std::shared_ptr<const nn::Product> logits_product_;
  std::shared_ptr<const nn::Product> scores_product_;  // loss_sum() product; logits_product_ if it is forward-only
  SequenceOrder order_;
  int64_t room_;     // number of logit columns on this rank, padding included
  double soft_cap_;  // cap of nn::LmHeadOptions
};

/// Projection to a few classes, whole on each rank that splits features. It reads one token of each row.
class TensorClassifier : public nn::LossHead {
 public:
  TensorClassifier(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden,
                   int64_t classes, double deviation);
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override;
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override;
  ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step,
                          const ops::ScoreOptions& options) override;
  at::Tensor logits(const at::Tensor& hidden, const nn::ForwardContext& step) override;

 private:
  /// Returns `x`, or zeros if this rank does not have the first token of each row.
  at::Tensor counted(const at::Tensor& x, const nn::ForwardContext& step) const;

  std::shared_ptr<const Layout> layout_;
  TensorOutputs classes_;
};

}  // namespace colossal::parallel
