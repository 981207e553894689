#include "colossal/parallel/tensor/layout.h"

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

struct Mode {
  const char* name;  ///< a row of config.cpp
  Layout (*layout)(comm::Mesh&, const TensorConfig&);
};

const Mode kModes[] = {
    {"1d", [](comm::Mesh& m, const TensorConfig&) { return layout_1d(m); }},
    {"2d", [](comm::Mesh& m, const TensorConfig&) { return layout_2d(m); }},
    {"2.5d", [](comm::Mesh& m, const TensorConfig&) { return layout_2d(m); }},
    {"3d", [](comm::Mesh& m, const TensorConfig& c) { return layout_3d(m, c.keep_gathered); }},
};

}  // namespace

Layout make_layout(const TensorConfig& config, comm::Mesh& mesh) {
  for (const Mode& mode : kModes)
    if (config.mode == mode.name) return mode.layout(mesh, config);
  throw Error("parallel", concat("tensor.mode ", config.mode, " has no layout"));
}

}  // namespace colossal::parallel
