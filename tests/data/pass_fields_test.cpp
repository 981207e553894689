#include "colossal/data/folding/pass_fields.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/thrown_message.h"

namespace colossal::pass_fields_test {
namespace {

using tensor::Dim;

tensor::Batch two_passes() {
  tensor::Batch batch;
  batch.add("aatype", {at::arange(6).view({2, 3}), {Dim::Row, Dim::Other}});
  batch.add("msa_feat", {at::arange(2 * 2 * 3 * 49).view({2, 2, 1, 3, 49}),
                         {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("msa_mask", {at::arange(12).view({2, 2, 1, 3}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return batch;
}

TEST(PassFields, SelectOnePass) {
  const tensor::Batch batch = two_passes();
  EXPECT_EQ(data::passes_of(batch), 2);
  const tensor::Batch second = data::batch_of_pass(batch, 1);
  EXPECT_EQ(data::passes_of(second), 0);
  EXPECT_TRUE(second.at("msa_feat").equal(batch.at("msa_feat").select(1, 1)));
  EXPECT_TRUE(second.at("msa_mask").equal(batch.at("msa_mask").select(1, 1)));
  EXPECT_TRUE(second.at("aatype").equal(batch.at("aatype")));
  EXPECT_TRUE(data::batch_of_pass(batch, 5).at("msa_mask").equal(second.at("msa_mask")));  // the last one
  EXPECT_TRUE(data::batch_of_pass(second, 0).at("msa_mask").equal(second.at("msa_mask")));
}

TEST(PassFields, RefuseOtherDimensions) {
  tensor::Batch batch = two_passes();
  batch = batch.with("msa_mask", {at::zeros({2, 1, 3}), {Dim::Row, Dim::Other, Dim::Other}});
  EXPECT_EQ(test::thrown_message([&] { data::passes_of(batch); }),
            "[data] msa_mask must have as many passes as the fields before it: got 0, and not 2");
}

}  // namespace
}  // namespace colossal::pass_fields_test
