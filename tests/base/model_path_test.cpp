#include "colossal/base/model_path.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/thrown_message.h"

namespace colossal::model_path_test {
namespace {

std::string refusal(const std::string& path) {
  return test::thrown_message([&] { require_model_path(path, "chat"); });
}

TEST(ModelPath, AdvisesToDownloadModelsOfHuggingFace) {
  EXPECT_EQ(refusal("Qwen/Qwen2.5-0.5B"),
            "[chat] there is no file or folder Qwen/Qwen2.5-0.5B; download the model of that name with `hf download "
            "Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`, then name the folder Qwen2.5-0.5B");
}

TEST(ModelPath, NamesWhatAPathMayBe) {
  const std::string rest = "; name a run folder, a Hugging Face folder or a GGUF file";
  for (const char* path : {"nope", "", "./a/b", "../a", "/a/b", "a/b/c", "a/", "/a", "a b/c", "a/b;c", "-a/b"})
    EXPECT_EQ(refusal(path), "[chat] there is no file or folder " + std::string(path) + rest);
}

TEST(ModelPath, TakesTheFirstPartOfAPathForAFolderThatExists) {
  const std::string before = std::filesystem::current_path();
  std::filesystem::create_directories(testing::TempDir() + "/model-path/runs/here");
  std::filesystem::current_path(testing::TempDir() + "/model-path");
  EXPECT_EQ(refusal("runs/nope"),
            "[chat] there is no file or folder runs/nope; name a run folder, a Hugging Face "
            "folder or a GGUF file");
  EXPECT_NO_THROW(require_model_path("runs/here", "chat"));
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace colossal::model_path_test
