// 3D: a cube of l^3 ranks; x, W and y are each split over all of them. x is gathered along one axis, W along another,
// and y is reduced and scattered along the third. The features of y are then split along another axis than the
// features of x, so the next layer swaps the axes and directions form pairs.
//
// Communication: forward (l-1) (S_x + S_W + S_y) / l^3 per rank; backward the same with gathered blocks kept, otherwise
//                S_x and S_W once more.
// Memory:        backward keeps the blocks [S_x + S_W] / l^3, or with keep_gathered the gathered ones, / l^2.
#include "colossal/parallel/tensor/gathered_product.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
// Rank (i, j, k) has mesh indices weight i, input j, output k. Outside it holds rows i*l + j and features k; inside
// rows i*l + k and features j.
Layout Mode3d::layout(comm::Mesh& mesh, const TensorConfig& config) {
  const bool keep_gathered = config.keep_gathered;
  comm::Group &input = mesh.group("input"), &weight = mesh.group("weight"), &output = mesh.group("output");
  Layout layout{.mesh = &mesh};
  layout.outside = outside(config);
  layout.inside = {.batch = {"weight", "output"}, .columns = {"input"}};
  layout.expand = {{.out = {"input"}, .out_shards = {"weight"}, .in = {"output"}},
                   gathered_product(input, weight, output, keep_gathered)};
  layout.contract = {{.out = {"output"}, .out_shards = {"weight"}, .in = {"input"}},
                     gathered_product(output, weight, input, keep_gathered)};
  layout.embedding = layout.expand.weight;
  return layout;
}

}  // namespace colossal::parallel
