// Specs as text, and which are legal.
#include "colossal/plan/specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::plan::specs_test {
namespace {

using ::testing::HasSubstr;

TEST(Mesh, ReadsWhatItPrints) {
  EXPECT_EQ(print_mesh(parse_mesh("tensor=4, data=2")), "data=2,tensor=4");
  EXPECT_EQ(parse_mesh("tensor=4").ranks(), 4);
  EXPECT_THAT(colossal::test::thrown_message([] { parse_mesh("tensr=4"); }),
              HasSubstr("got `tensr=4`, did you mean `tensor`?"));
  EXPECT_THAT(colossal::test::thrown_message([] { parse_mesh("data=0"); }),
              HasSubstr("must be 1 to 65536: got `data=0`"));
  EXPECT_THAT(colossal::test::thrown_message([] { parse_mesh("data"); }), HasSubstr("got `data`"));
  EXPECT_THAT(colossal::test::thrown_message([] { parse_mesh("data=2,data=2"); }), HasSubstr("got data twice"));
}

TEST(Spec, ReadsEveryLegalSpecItPrints) {
  const Mesh mesh = parse_mesh("data=2,tensor=4");
  for (const Spec& spec : legal_specs({8, 8, 8, 8}, mesh)) EXPECT_EQ(parse_spec(print_spec(spec, mesh), mesh), spec);
  EXPECT_EQ(print_spec({3, 0}, mesh), "[data+tensor, R]");
  EXPECT_EQ(parse_spec("[]", mesh), Spec{});
}

TEST(Spec, CountsLegalSpecs) {
  const Mesh mesh = parse_mesh("data=2,tensor=4");
  EXPECT_EQ(legal_specs({8, 8}, mesh).size(), 9);
  EXPECT_EQ(legal_specs({8, 8, 8}, mesh).size(), 16);
  EXPECT_EQ(legal_specs({8, 8, 8, 8}, mesh).size(), 25);
  EXPECT_EQ(legal_specs({2, 6}, mesh).size(), 3) << "whole, and data in one of the dimensions";
  EXPECT_EQ(legal_specs({8, 8}, parse_mesh("data=2")).size(), 3) << "an axis of one rank divides nothing";
  EXPECT_EQ(legal_specs({}, mesh).size(), 1);
}

TEST(Spec, RefusesOtherTexts) {
  const Mesh mesh = parse_mesh("data=2,tensor=4");
  EXPECT_THAT(colossal::test::thrown_message([&] { parse_spec("data, R", mesh); }),
              HasSubstr("must be a list such as [data, R]"));
  EXPECT_THAT(colossal::test::thrown_message([&] { parse_spec("[dta, R]", mesh); }), HasSubstr("did you mean `data`?"));
  EXPECT_THAT(colossal::test::thrown_message([&] { parse_spec("[tensor+data]", mesh); }),
              HasSubstr("in the order of the mesh"));
  EXPECT_THAT(colossal::test::thrown_message([&] { parse_spec("[data, data]", mesh); }),
              HasSubstr("at most one dimension"));
}

}  // namespace
}  // namespace colossal::plan::specs_test
