// Whole models under every small layout against one process, in fp64: losses, input gradient, every parameter gradient, gradient norms,
// weights after ten steps. With collectives off each case must fail as a ParityError, or it proves nothing.
#include <gtest/gtest.h>

#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test {
namespace {

struct Layout {
  int data, tensor;
};

void PrintTo(const Layout& l, std::ostream* out) { *out << "data" << l.data << "_tensor" << l.tensor; }

class ModelParity : public testing::TestWithParam<Layout> {
 protected:
  ParityCase make(models::ModelShape shape) const {
    return {.shape = std::move(shape), .data = GetParam().data, .tensor = GetParam().tensor};
  }
  void both(ParityCase c) const {
    EXPECT_NO_THROW(check_parity(c));
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError);
  }
};

TEST_P(ModelParity, Gpt2EqualsSingleProcess) { both(make(tiny_gpt2())); }
TEST_P(ModelParity, LlamaEqualsSingleProcess) { both(make(tiny_llama())); }
TEST_P(ModelParity, VitEqualsSingleProcess) { both(make(tiny_vit())); }

// 5 heads and 3 kv groups divide by nothing: padded heads, padded ffn, padded vocabulary.
TEST_P(ModelParity, SizesThatDoNotDivideEqualSingleProcess) {
  models::ModelShape odd = tiny_gpt2();
  odd.heads = odd.kv_heads = 5;
  odd.ffn = 27;
  both(make(odd));
  models::ModelShape grouped = tiny_llama();
  grouped.heads = 6;
  grouped.kv_heads = 3;
  both(make(grouped));
  models::ModelShape images = tiny_vit();
  images.heads = images.kv_heads = 5;
  images.ffn = 27;
  both(make(images));
}

TEST_P(ModelParity, OneKvHeadOnAllRanksEqualsSingleProcess) {
  models::ModelShape shape = tiny_llama();
  shape.kv_heads = 1;
  both(make(shape));
}

TEST_P(ModelParity, DropoutMasksEqualSingleProcess) {
  ParityCase c = make(tiny_gpt2());
  c.shape.dropout = 0.3;
  both(c);
}

TEST_P(ModelParity, ClippingEqualsSingleProcess) {
  ParityCase c = make(tiny_llama());
  c.clip = 0.05;
  both(c);
}

TEST_P(ModelParity, AccumulationEqualsSingleProcess) {
  ParityCase c = make(tiny_gpt2());
  c.batch = 8;
  c.accumulate = 2;
  both(c);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ModelParity,
                         testing::Values(Layout{1, 2}, Layout{1, 4}, Layout{2, 1}, Layout{4, 1}, Layout{2, 2}, Layout{4, 2},
                                         Layout{2, 4}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace colossal::test
