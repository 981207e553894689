// Parts of local tensors cover every element once for any borders, and label each element with its logical index.
#include "colossal/tensor/flat_part.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace colossal::tensor::flat_part_test {
namespace {

TEST(FlatPart, RebuildsTheLogicalTensorFromAllParts) {
  for (const ShardSpec& spec :
       {ShardSpec::whole({}), ShardSpec::whole({7}), ShardSpec::split({5, 4, 3}, 1, {"tensor"}),
        ShardSpec::split({5, 7}, 0, {"tensor"}), ShardSpec::split({12, 3}, 0, {"tensor"}, {{6, 1}, {3, 1}, {3, 1}}),
        ShardSpec::split({4, 5}, 1, {"tensor"})})
    for (const int64_t parts : {1, 2, 3, 5}) {
      const at::Tensor logical = at::arange(1, spec.numel() + 1, at::kLong).view(spec.shape);
      at::Tensor rebuilt = at::zeros_like(logical), counted = at::zeros_like(logical);
      for (int tensor = 0; tensor < 2; ++tensor)
        for (int64_t i = 0; i < parts; ++i) {
          const MeshCoordinates coordinates(
              {{"data", static_cast<int>(parts), static_cast<int>(i), tensor::BatchSplit::Rows},
               {"tensor", 2, tensor}});
          const auto shape = spec.local_shape(coordinates);
          at::Tensor local = at::zeros(shape, at::kLong);
          for (const LocalBox& b : spec.local_boxes(coordinates)) {
            at::Tensor to = local, from = logical;
            for (size_t d = 0; d < b.size.size(); ++d)
              to = to.narrow(d, b.local_start[d], b.size[d]), from = from.narrow(d, b.start[d], b.size[d]);
            to.copy_(from);
          }
          const int64_t n = local.numel(), first = i * n / parts, last = (i + 1) * n / parts;
          const FlatPart part{first, last - first, true};
          const at::Tensor flat = local.view({-1}).narrow(0, first, last - first).clone();
          for (const LocalBox& b : local_boxes(spec, coordinates, part)) {
            at::Tensor to = rebuilt, count = counted;
            for (size_t d = 0; d < b.size.size(); ++d)
              to = to.narrow(d, b.start[d], b.size[d]), count = count.narrow(d, b.start[d], b.size[d]);
            to.copy_(at_local_box(flat, shape, part, b));
            if (b.primary) count += 1;
          }
        }
      EXPECT_TRUE(at::equal(rebuilt, logical)) << spec.shape.size() << " dimensions, " << parts << " parts";
      EXPECT_TRUE(at::equal(counted, at::ones_like(counted)))
          << spec.shape.size() << " dimensions, " << parts << " parts";
    }
}

TEST(FlatPart, HasNoPrimaryBlocksIfNotCounted) {
  for (const LocalBox& b : local_boxes(ShardSpec::whole({3, 3}), MeshCoordinates(), {1, 7, false}))
    EXPECT_FALSE(b.primary);
}

}  // namespace
}  // namespace colossal::tensor::flat_part_test
