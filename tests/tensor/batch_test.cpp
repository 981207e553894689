// Fields of a batch: adding, finding, cutting and changing them, and the fields that are refused.
#include "colossal/tensor/batch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "support/thrown_message.h"

namespace colossal::tensor::batch_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor counted(at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel, at::kLong).view(sizes);
}

Batch text() {
  Batch batch;
  batch.add("ids", {counted({4, 6}), {Dim::Row, Dim::Token}});
  batch.add("labels", {counted({4, 1}), {Dim::Row, Dim::Other}, -100});
  batch.add("documents", {.tensor = counted({4, 6}), .dims = {Dim::Row, Dim::Token}, .stays_whole = true});
  batch.wanted = {{1, 2}};
  return batch;
}

std::string refusal(const std::string& name, Field field) {
  return test::thrown_message([&] {
    Batch batch = text();
    batch.add(name, std::move(field));
  });
}

TEST(Batch, KeepsFieldsInTheOrderOfAdding) {
  std::vector<std::string> names;
  const Batch batch = text();
  for (const auto& [name, field] : batch.fields()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("ids", "labels", "documents"));
  EXPECT_EQ(batch.rows(), 4);
  EXPECT_EQ(batch.field("labels").ignored, -100);
  EXPECT_TRUE(batch.field("documents").stays_whole);
  EXPECT_FALSE(batch.find("images").defined());
  EXPECT_EQ(Batch().rows(), 0);
}

TEST(Batch, CountsTokensOfItsFirstFieldWithTokens) {
  Batch batch;
  batch.add("images", {counted({2, 3, 8, 8}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  EXPECT_FALSE(batch.has_tokens());
  batch.add("pairs", {counted({2, 1, 5}), {Dim::Row, Dim::Other, Dim::Token}});
  batch.add("answer", {counted({2, 3}), {Dim::Row, Dim::Token}});
  EXPECT_EQ(batch.tokens(), 5);
}

TEST(Batch, CutsAllFieldsIntoViewsOfRows) {
  const Batch batch = text(), part = batch.part(1, 2);
  EXPECT_EQ(part.rows(), 2);
  EXPECT_TRUE(at::equal(part.at("ids"), batch.at("ids").slice(0, 1, 3)));
  EXPECT_TRUE(at::equal(part.at("labels"), batch.at("labels").slice(0, 1, 3)));
  EXPECT_TRUE(part.at("ids").is_alias_of(batch.at("ids")));
  EXPECT_EQ(part.wanted, batch.wanted);
  EXPECT_EQ(part.field("labels").ignored, -100);
  EXPECT_THAT(test::thrown_message([&] { batch.part(3, 2); }),
              HasSubstr("[data] a part of a batch must lie in its 4 rows: got rows 3 to 4"));
}

TEST(Batch, ChangesTensorsAndKeepsTheirKinds) {
  const Batch batch = text();
  const Batch doubled =
      batch.map([](const Field& field) { return field.stays_whole ? field.tensor : field.tensor * 2; });
  EXPECT_TRUE(at::equal(doubled.at("ids"), batch.at("ids") * 2));
  EXPECT_TRUE(at::equal(doubled.at("documents"), batch.at("documents")));
  EXPECT_EQ(doubled.field("ids").dims, batch.field("ids").dims);
  EXPECT_THAT(
      test::thrown_message([&] {
        batch.map([](const Field& f) { return f.dims.back() == Dim::Other ? f.tensor.narrow(0, 0, 3) : f.tensor; });
      }),
      HasSubstr("[data] field `labels` must have the 4 rows of the batch: got 3"));
}

TEST(Batch, HasTheRowsOfItsPartsAgain) {
  const Batch batch = text();
  const Batch again = joined_rows({batch.part(0, 1), batch.part(1, 3)});
  ASSERT_EQ(again.fields().size(), batch.fields().size());
  for (const auto& [name, field] : batch.fields()) {
    EXPECT_TRUE(at::equal(again.at(name), field.tensor)) << name;
    EXPECT_EQ(again.field(name).dims, field.dims);
    EXPECT_EQ(again.field(name).ignored, field.ignored);
  }
  EXPECT_THAT(test::thrown_message([&] { joined_rows({batch, batch.without("labels")}); }), HasSubstr("`labels`"));
  EXPECT_EQ(joined_rows({Batch(), Batch()}).rows(), 0);
}

TEST(Batch, ListsItsFieldsIfOneIsMissing) {
  EXPECT_THAT(test::thrown_message([] { text().at("images"); }),
              HasSubstr("[data] the batch must have a field `images`: got ids, labels, documents"));
  EXPECT_THAT(test::thrown_message([] { Batch().at("ids"); }), HasSubstr("a field `ids`: got no fields"));
}

TEST(Batch, RefusesMismatchedFieldsByName) {
  EXPECT_EQ(refusal("weights", {counted({4, 2}), {Dim::Row, Dim::Feature}}), "");
  EXPECT_THAT(refusal("ids", {counted({4, 6}), {Dim::Row, Dim::Token}}),
              HasSubstr("[data] the names of a batch's fields must differ: got `ids` twice"));
  EXPECT_THAT(refusal("", {counted({4}), {Dim::Row}}), HasSubstr("must have a name"));
  EXPECT_THAT(refusal("weights", {counted({3, 6}), {Dim::Row, Dim::Token}}),
              HasSubstr("field `weights` must have the 4 rows of the batch: got 3"));
  EXPECT_THAT(refusal("weights", {at::Tensor(), {Dim::Row}}), HasSubstr("field `weights` must have a tensor"));
  EXPECT_THAT(refusal("weights", {counted({4, 6}), {Dim::Row}}),
              HasSubstr("field `weights` must name the kind of each dimension: got 1 kinds for sizes [4, 6]"));
  EXPECT_THAT(refusal("weights", {counted({4, 6}), {Dim::Token, Dim::Row}}),
              HasSubstr("field `weights` must have rows in its first dimension"));
  EXPECT_THAT(refusal("weights", {counted({4, 4}), {Dim::Row, Dim::Row}}), HasSubstr("and in no other one"));
}

}  // namespace
}  // namespace colossal::tensor::batch_test
