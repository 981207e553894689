#include "colossal/parallel/tensor/layout.h"

#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {

Layout make_layout(const TensorConfig& config, comm::Mesh& mesh) {
  return with_mode(config, [&](auto mode) { return mode.layout(mesh, config); });
}

}  // namespace colossal::parallel
