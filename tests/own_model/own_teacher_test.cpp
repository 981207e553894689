// The program examples/own_teacher: a student and a frozen teacher train, resume under another layout, and are planned.
// The student is exported and loaded without the teacher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "own_model/trained_example.h"

namespace colossal::test::own_teacher_test {
namespace {

using testing::HasSubstr;

class OwnTeacher : public TrainedExample {
 protected:
  OwnTeacher() : TrainedExample("own_teacher", "distill.toml") {}
};

TEST_F(OwnTeacher, ResumesUnderAnotherLayoutAndExportsTheStudentAlone) {
  // The teacher is a run of its own.
  ASSERT_EQ(run("train", "taught", {"--distill.share=0", "--teacher.from=gpt2-tiny"}).status, 0);
  const std::string teacher = "--teacher.from=" + (folder / "taught");
  const std::vector<double> want = losses("whole", {teacher});
  ASSERT_EQ(want.size(), 6u);
  const Finished eight = run("train", "parts",
                             {teacher, "--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.data=2",
                              "--parallel.zero=1", "--parallel.pipeline.micro_batches=2"});
  EXPECT_EQ(eight.status, 0) << eight.output;
  EXPECT_THAT(eight.output, HasSubstr("teacher: llama of"));
  EXPECT_THAT(eight.output, HasSubstr("frozen"));
  const std::vector<double> got =
      losses("parts", {teacher, "--resume-from=3", "--parallel.sequence.size=2", "--parallel.sequence.mode=ring"});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << "step " << i + 1;

  const nlohmann::json manifest =
      nlohmann::json::parse(read_all(folder / "parts/checkpoints/step-000006/manifest.json"));
  for (const nlohmann::json& block : manifest.at("blocks"))
    EXPECT_THAT(block.at("name").get<std::string>(), testing::Not(HasSubstr("teacher")));
  const nlohmann::json& needs = manifest.at("progress").at("needs");
  ASSERT_EQ(needs.size(), 1u);
  EXPECT_EQ(needs[0].at("name"), "teacher");
  EXPECT_EQ(needs[0].at("from"), folder / "taught");
  EXPECT_EQ(needs[0].at("checksum").get<std::string>().size(), 32u);

  // another teacher under the same name
  ASSERT_EQ(run("train", "other", {"--distill.share=0", "--training.seed=5"}).status, 0);
  const Finished refused = run("train", "parts", {"--resume-from=3", "--teacher.from=" + (folder / "other")});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, HasSubstr("must have the weights with which the checkpoint was trained: got others for "
                                        "teacher"));
  EXPECT_EQ(run("train", "parts", {"--resume-from=3", "--accept-changed-model", "--teacher.from=" + (folder / "other")})
                .status,
            0);

  std::filesystem::remove_all(folder / "taught");
  std::filesystem::remove_all(folder / "other");
  const Finished out = program({"export", "--from", folder / "whole", "--to", folder / "out"});
  EXPECT_EQ(out.status, 0) << out.output;
  const Finished generated =
      program({"generate", "--from", folder / "whole", "--prompt", "line", "--max-tokens=4", "--run.device=cpu"});
  EXPECT_EQ(generated.status, 0) << generated.output;
  const Finished none = program({"generate", "--from", folder / "out", "--model", "teacher", "--prompt", "line"});
  EXPECT_THAT(none.output, HasSubstr("must be a run folder to have a model teacher"));
}

TEST_F(OwnTeacher, TrainsAsPlanned) {
  const Finished check = run("plan", "none", {"--check", "--parallel.data=2", "--parallel.pipeline=2", "--json"});
  EXPECT_EQ(check.status, 0) << check.output;
  const Finished ring = run("plan", "none",
                            {"--check", "--parallel.sequence.size=2", "--parallel.sequence.mode=ring",
                             "--data.documents=joined", "--parallel.pipeline=2"});
  EXPECT_EQ(ring.status, 0) << ring.output;
  EXPECT_THAT(ring.output, HasSubstr("numbers of calls and of bytes sent are equal, which is all of them"));
  const Finished plain = run("plan", "none", {"--parallel.data=2", "--parallel.tensor=2", "--parallel.zero=1"});
  EXPECT_EQ(plain.status, 0) << plain.output;
  EXPECT_THAT(plain.output, HasSubstr("teacher: "));
  EXPECT_THAT(plain.output, HasSubstr("the MFU counts the main model alone"));
  const nlohmann::json object = nlohmann::json::parse(check.output.substr(check.output.find('{')));
  const nlohmann::json& models = object.at("models");
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].at("name"), "");
  EXPECT_EQ(models[0].at("trained"), models[0].at("parameters"));
  EXPECT_EQ(models[1].at("name"), "teacher");
  EXPECT_EQ(models[1].at("trained"), 0);
  const auto bytes = models[1].at("bytes").get<double>(), whole = 8 * models[1].at("parameters").get<double>();
  EXPECT_GE(bytes, 2 * whole) << "two replicas in fp64";
  EXPECT_LE(bytes, 2.1 * whole) << "no gradients and no states; the embedding is on both stages";
}

TEST_F(OwnTeacher, IsSearchedAndPlannedTogether) {
  const Finished found = run("plan", "none", {"--search", "--ranks", "2", "--json"});
  EXPECT_EQ(found.status, 0) << found.output;
  EXPECT_THAT(found.output, HasSubstr("\"teacher\""));
}

}  // namespace
}  // namespace colossal::test::own_teacher_test
