#include "colossal/parallel/tensor/layout.h"

#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

/// Of one rank, whatever the mode: nothing is cut, nothing is sent.
Layout layout_of_one(comm::Mesh& mesh) {
  const std::shared_ptr<const nn::Product> product(std::shared_ptr<void>(),
                                                   &nn::serial_product());  // nobody's to delete
  return {.mesh = &mesh, .expand = {{}, product}, .contract = {{}, product}};
}

}  // namespace

Layout make_layout(const TensorConfig& config, comm::Mesh& mesh) {
  if (config.size == 1) return layout_of_one(mesh);
  return with_mode(config, [&](auto mode) { return mode.layout(mesh, config); });
}

}  // namespace colossal::parallel
