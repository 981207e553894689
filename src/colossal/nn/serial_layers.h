// The factory of one process: plain layers, every parameter whole. It is the reference that every parallel factory is
// tested against.
#pragma once
#include "colossal/nn/layers.h"

namespace colossal::nn {

/// Factory of unsharded layers. Communication: none.
class SerialLayers : public Layers {
 public:
  using Layers::Layers;
  std::unique_ptr<Expand> expand(const std::string& name, int64_t in, int64_t out, const LinearOptions&) override;
  std::unique_ptr<Contract> contract(const std::string& name, int64_t in, int64_t out, const LinearOptions&) override;
  std::unique_ptr<HeadProjection> heads(const std::string& name, const AttentionShape&, const LinearOptions&) override;
  std::unique_ptr<HeadProjection> latent_heads(const std::string& name, const AttentionShape&,
                                               const LatentOptions&) override;
  std::unique_ptr<CrossProjection> cross_heads(const std::string& name, const AttentionShape&, const LinearOptions& q,
                                               const LinearOptions& kv) override;
  std::unique_ptr<HeadTable> head_table(const std::string& name, int64_t rows, int64_t heads,
                                        double deviation) override;
  std::unique_ptr<OutputProjection> from_heads(const std::string& name, const AttentionShape&,
                                               const LinearOptions&) override;
  std::unique_ptr<Experts> experts(const std::string& name, int64_t hidden, const ExpertOptions&) override;
  std::unique_ptr<Embedding> embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                       double deviation) override;
  std::unique_ptr<Norm> head_norm(const std::string& name, int64_t head_dim, const NormOptions&) override;
  std::unique_ptr<Dense> dense(const std::string& name, int64_t in, int64_t out, const LinearOptions&) override;
  std::unique_ptr<LossHead> lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                    const LmHeadOptions&) override;
  std::unique_ptr<LossHead> classifier(const std::string& name, int64_t hidden, int64_t classes,
                                       double deviation) override;
  std::unique_ptr<Vector> vector(const std::string& name, std::vector<int64_t> shape, const VectorOptions&) override;
  std::shared_ptr<const Features> features(int64_t size, Place place) override;
  std::shared_ptr<const TokenRuns> token_runs() override;
  std::unique_ptr<Modulation> modulation(const std::string& name, int64_t hidden, int64_t count) override;
  std::unique_ptr<Outputs> outputs(const std::string& name, int64_t hidden, int64_t out, const LinearOptions&) override;
};

}  // namespace colossal::nn
