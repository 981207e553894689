// Further models with scores or values read the token ids of the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/file.h"
#include "colossal/models/registry.h"
#include "colossal/run/further_model.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::further_texts_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class FurtherTexts : public testing::Test {
 protected:
  /// Writes a tokenizer of words, one in a line, and returns its folder.
  std::string words(const std::string& name, const std::string& lines) const {
    create_folder(folder_ / name);
    write_file(folder_ / name + "/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + lines);
    return folder_ / name;
  }
  /// Writes a tokenizer.json, as a run of bytes does, and returns its folder.
  std::string files(const std::string& name, const text::TokenizerFiles& files = text::files_of_bytes()) const {
    folder_.write(name + "/tokenizer.json", files.tokenizer.dump());
    folder_.write(name + "/tokenizer_config.json", files.config.dump());
    return folder_ / name;
  }
  /// Returns what check_texts() says about a reward model in a run with the tokenizer `own` and texts of 64 tokens.
  static std::string refused(const std::string& own, const std::string& other, int64_t vocabulary = 16,
                             int64_t positions = 64, int outputs = 1) {
    models::ModelShape shape = models::built_in().resolve({.name = "llama-tiny"});
    shape.vocabulary = vocabulary, shape.positions = positions;
    const ResolvedFurther one{.model = {.name = "reward", .outputs = outputs},
                              .source = {.path = "runs/reward", .shape = shape, .tokenizer = other}};
    Config config;
    config.data.tokenizer = own;
    return test::thrown_message([&] { check_texts({one}, config, *text::make_tokenizer(own), 64); });
  }
  test::TemporaryFolder folder_;
};

TEST_F(FurtherTexts, NeedTheTokensOfTheRun) {
  const std::string own = words("own", "to\nbe\n"), same = words("same", "to\nbe\n"),
                    more = words("more", "to\nbe\nor\n"), other = words("other", "be\nto\n"),
                    fewer = words("fewer", "to\n");
  EXPECT_THAT(refused(own, own), IsEmpty());
  EXPECT_THAT(refused(own, same), IsEmpty());
  EXPECT_THAT(refused(own, more), IsEmpty()) << "ids that the run does not have do no harm";
  EXPECT_THAT(refused(own, ""), IsEmpty()) << "a preset has no tokenizer";
  EXPECT_THAT(refused(own, other),
              AllOf(HasSubstr("reward.from must name a model with the tokenizer of the run"), HasSubstr(own),
                    HasSubstr(other + ", in which id 5 is be (5)"), HasSubstr("in which it is to (5)")));
  EXPECT_THAT(refused(own, fewer), HasSubstr(fewer + ", in which id 6 is missing"));
  EXPECT_THAT(refused(own, "bytes"), HasSubstr("got bytes, in which id 0 is"));
  EXPECT_THAT(refused(own, other, 16, 64, 0), IsEmpty()) << "such a model may read other fields";
}

TEST_F(FurtherTexts, CompareWhatIdsStandFor) {
  const std::string own = files("bytes");
  EXPECT_THAT(refused("bytes", own, 257), IsEmpty());
  EXPECT_THAT(refused(own, "bytes", 257), IsEmpty());
  text::TokenizerFiles swapped = text::files_of_bytes(), other_end = text::files_of_bytes();
  swapped.tokenizer["model"]["vocab"]["A"] = 66, swapped.tokenizer["model"]["vocab"]["B"] = 65;
  EXPECT_THAT(refused("bytes", files("swapped", swapped), 257), HasSubstr("id 65 is B (65), and bytes"));
  other_end.tokenizer["added_tokens"][0]["content"] = "<|other|>";
  other_end.config["eos_token"] = nullptr;
  EXPECT_THAT(refused("bytes", files("other", other_end), 257), HasSubstr("id 256 is <|other|> (256), and bytes"));
}

TEST_F(FurtherTexts, NeedTheVocabularyAndThePositionsOfTheRun) {
  const std::string own = words("own", "to\nbe\n");
  EXPECT_THAT(refused(own, "", 6), HasSubstr("got runs/reward with 6 of 7 ids"));
  EXPECT_THAT(refused(own, "", 7), IsEmpty());
  EXPECT_THAT(refused(own, "", 7, 63),
              HasSubstr("as many positions as a text has tokens, 64: got runs/reward with 63"));
}

}  // namespace
}  // namespace colossal::run::further_texts_test
