// The parallel factory: every layer written once over a Layout.
#pragma once
#include <memory>

#include "colossal/nn/layers.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// The factory of parallel layers.
///
/// Layout:        activations follow layout.outside at the borders of blocks and layout.inside between expand and
///                contract. Weights follow layout.expand and layout.contract. Heads stay whole (nn::HeadSplit).
///                Vocabulary, ffn and heads that do not divide are padded with zeros. Vectors: see Table.
/// Communication: linear layers: see their Product. kv heads that several ranks hold: one all_reduce of
///                their rows of dW among those ranks. Latents: linear.h. Experts: parallel/expert/ranks.h. Norms: if
///                features are split, a sum of 1 (RMSNorm) or 2 (LayerNorm) values per row over them in forward and
///                backward. Embedding, loss: vocabulary.h.
///                Classifier: one all_reduce of the logits over the ranks that split features. Its loss makes one over
///                the ranks that split tokens, of which one has the token that counts. Outputs of a few features:
///                linear.h. Modulation: modulation.h. Dropout: none, because masks depend only on the logical index.
///                Norms of heads: none, but ranks with other tokens or heads hold copies of the weight whose gradients
///                are partial sums.
/// Errors:        a hidden size that does not divide (check_sizes). The caller must check ids against the vocabulary.
class TensorLayers : public nn::Layers {
 public:
  TensorLayers(nn::Parameters& parameters, Layout layout);
  std::unique_ptr<nn::Expand> expand(const std::string& name, int64_t in, int64_t out,
                                     const nn::LinearOptions&) override;
  std::unique_ptr<nn::Contract> contract(const std::string& name, int64_t in, int64_t out,
                                         const nn::LinearOptions&) override;
  std::unique_ptr<nn::HeadProjection> heads(const std::string& name, const nn::AttentionShape&,
                                            const nn::LinearOptions&) override;
  std::unique_ptr<nn::HeadProjection> latent_heads(const std::string& name, const nn::AttentionShape&,
                                                   const nn::LatentOptions&) override;
  std::unique_ptr<nn::CrossProjection> cross_heads(const std::string& name, const nn::AttentionShape&,
                                                   const nn::LinearOptions& q, const nn::LinearOptions& kv) override;
  std::unique_ptr<nn::HeadTable> head_table(const std::string& name, int64_t rows, int64_t heads,
                                            double deviation) override;
  std::unique_ptr<nn::OutputProjection> from_heads(const std::string& name, const nn::AttentionShape&,
                                                   const nn::LinearOptions&) override;
  std::unique_ptr<nn::Experts> experts(const std::string& name, int64_t hidden, const nn::ExpertOptions&) override;
  std::unique_ptr<nn::Embedding> embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                           double deviation) override;
  std::unique_ptr<nn::Norm> head_norm(const std::string& name, int64_t head_dim, const nn::NormOptions&) override;
  std::unique_ptr<nn::Dense> dense(const std::string& name, int64_t in, int64_t out, const nn::LinearOptions&) override;
  std::unique_ptr<nn::LossHead> lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                        const nn::LmHeadOptions&) override;
  std::unique_ptr<nn::LossHead> classifier(const std::string& name, int64_t hidden, int64_t classes,
                                           double deviation) override;
  std::unique_ptr<nn::Vector> vector(const std::string& name, std::vector<int64_t> shape,
                                     const nn::VectorOptions&) override;
  std::shared_ptr<const nn::Features> features(int64_t size, nn::Place place) override;
  std::shared_ptr<const nn::TokenRuns> token_runs() override;
  std::shared_ptr<const nn::AxisSwitch> axis_switch() const override;
  std::shared_ptr<const nn::AxialRanks> axial_ranks() const override;
  nn::OwnTokens own_tokens() const override;
  nn::OwnTokens inside_tokens() const override;
  std::unique_ptr<nn::Outputs> outputs(const std::string& name, int64_t hidden, int64_t out,
                                       const nn::LinearOptions&) override;
  std::unique_ptr<nn::Modulation> modulation(const std::string& name, int64_t hidden, int64_t count) override;
  nn::FieldPart field_part() const override;
  int64_t batch_parts() const override;
  bool splits_tokens() const override;

 protected:
  std::unique_ptr<nn::Attention> make_attention(int64_t layer, const nn::AttentionShape&,
                                                const nn::AttentionOptions&) override;

 private:
  std::shared_ptr<const Layout> layout_;  // shared with the layers, which outlive this factory
};

}  // namespace colossal::parallel
