// The program examples/own_layer: its model trains, resumes under another layout, is planned and generates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "own_model/trained_example.h"

namespace colossal::test::own_layer_test {
namespace {

using testing::HasSubstr;

class OwnLayerProgram : public TrainedExample {
 protected:
  OwnLayerProgram() : TrainedExample("own_layer", "hybrid.toml", {"--data.documents=joined"}) {}
};

TEST_F(OwnLayerProgram, ResumesUnderAnotherLayoutAndGenerates) {
  const std::vector<double> want = losses("whole", {});
  ASSERT_EQ(want.size(), 6u);
  EXPECT_LT(want.back(), want.front());
  losses("parts", {"--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.data=2", "--parallel.zero=1",
                   "--parallel.pipeline.micro_batches=2"});
  const std::vector<double> got =
      losses("parts", {"--resume-from=3", "--parallel.sequence.size=2", "--parallel.sequence.mode=ring"});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << "step " << i + 1;

  std::string text;
  for (const Words& layout : {Words{}, Words{"--parallel.tensor=2"}, Words{"--parallel.sequence.size=2"}}) {
    Words words{"generate", "--from", folder / "whole", "--prompt", "line 3", "--max-tokens=24", "--run.device=cpu"};
    words.insert(words.end(), layout.begin(), layout.end());
    const Finished generated = program(words);
    EXPECT_EQ(generated.status, 0) << generated.output;
    if (text.empty()) text = generated.output;
    EXPECT_EQ(generated.output, text);
  }
}

TEST_F(OwnLayerProgram, TrainsAsPlanned) {
  for (const Words& layout :
       {Words{"--parallel.data=2", "--parallel.tensor.size=4", "--parallel.tensor.mode=2d"},
        Words{"--parallel.sequence.size=2", "--parallel.sequence.mode=ring", "--parallel.pipeline=2"},
        Words{"--parallel.tensor.size=2", "--parallel.tensor.sequence=true", "--parallel.data=2",
              "--parallel.zero=3"}}) {
    Words flags{"--check"};
    flags.insert(flags.end(), layout.begin(), layout.end());
    const Finished check = run("plan", "none", flags);
    EXPECT_EQ(check.status, 0) << check.output;
    EXPECT_THAT(check.output, HasSubstr("numbers of calls and of bytes sent are equal, which is all of them"));
  }
}

}  // namespace
}  // namespace colossal::test::own_layer_test
