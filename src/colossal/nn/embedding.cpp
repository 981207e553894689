#include "colossal/nn/embedding.h"

#include "colossal/nn/layers.h"
#include "colossal/nn/lookup.h"
#include "colossal/nn/vector.h"

namespace colossal::nn {
namespace {

/// A table of which each rank has all rows, with its features.
class PositionTable final : public Embedding {
 public:
  PositionTable(Layers& make, const std::string& name, int64_t length, int64_t hidden, double deviation)
      : tokens_(make.own_tokens()),
        table_(make.vector(name + ".weight", {length, hidden},
                           {.features = 1, .init = Init::normal(deviation), .decay = true})) {}
  at::Tensor forward(const at::Tensor& ids, const ForwardContext& step) override {
    return lookup(table_->value(), tokens_(step).of(ids));
  }
  Parameter& weight() override { return table_->parameter(); }

 private:
  OwnTokens tokens_;
  std::unique_ptr<Vector> table_;
};

}  // namespace

std::unique_ptr<Embedding> Layers::positions(const std::string& name, int64_t length, int64_t hidden,
                                             double deviation) {
  return std::make_unique<PositionTable>(*this, name, length, hidden, deviation);
}

}  // namespace colossal::nn
