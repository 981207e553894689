// The records of rollouts: bits, torn and damaged files, full disks, digests, several writers, kept steps.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include "colossal/align/rollouts/appended_records.h"
#include "colossal/align/rollouts/records.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::align::rollout_records_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const RolloutDigests kDigests{.draws = "weights 3, seed 7", .scores = "exact"};

RolloutPrompt prompt_of(int64_t index, const std::string& line = "{}") {
  return {.index = index, .ids = {5, 6, index}, .line = line};
}

RolloutAnswer answer_of(int64_t prompt, int64_t number, int64_t tokens = 3) {
  RolloutAnswer answer{.prompt = prompt, .number = number, .version = 3, .finish_reason = "stop"};
  answer.ids.resize(static_cast<size_t>(tokens));
  std::iota(answer.ids.begin(), answer.ids.end(), 10 * prompt + number);
  answer.log_probabilities.assign(answer.ids.size(), -0.1 * static_cast<double>(number + 1));
  return answer;
}

RolloutScore score_of(int64_t prompt, int64_t number, double value) {
  return {prompt, number, {.value = value, .parts = {{"exact", value}}, .text = "as wanted"}};
}

/// Returns all that a reader sees of a step, each number by its bits.
std::string seen(const std::string& folder, int64_t step = 1) {
  std::string text;
  for (const StoredGroup& group : read_rollouts(folder, step)) {
    text += bytes_of(PromptRecord{"", group.prompt});
    for (const StoredAnswer& one : group.answers) {
      text += bytes_of(AnswerRecord{"", one.answer});
      if (one.score) text += bytes_of(ScoreRecord{"", "", {.score = *one.score}});
    }
  }
  return text;
}

/// Returns "prompt/number" of the answers that a reader sees; with "=" and the score, if there is one.
std::vector<std::string> answers_in(const std::string& folder, int64_t step = 1) {
  std::vector<std::string> names;
  for (const StoredGroup& group : read_rollouts(folder, step))
    for (const StoredAnswer& one : group.answers)
      names.push_back(concat(one.answer.prompt, "/", one.answer.number,
                             one.score ? concat("=", one.score->value.value_or(-1)) : ""));
  return names;
}

/// A folder of rollouts, as the ranks of a run see it.
class RolloutFolder : public ::testing::Test {
 protected:
  RolloutStep open(int rank = 0, const RolloutDigests& digests = kDigests, int64_t step = 1) {
    return RolloutRecords(folder, rank, log).open(step, digests);
  }
  /// Draws what a step does not have, and returns the number of answers that were drawn.
  static int64_t draw(RolloutStep& step, int64_t prompts, int64_t answers, int64_t tokens = 1) {
    int64_t drawn = 0;
    for (int64_t p = 0; p < prompts; ++p) {
      step.begin(prompt_of(p));
      for (int64_t n = 0; n < answers; ++n) {
        if (step.answer(p, n)) continue;
        step.add(answer_of(p, n, tokens));
        ++drawn;
      }
    }
    return drawn;
  }
  std::string logged() const { return test::read_all(temporary / "log"); }

  const test::TemporaryFolder temporary;
  const std::string folder = temporary / "rollouts";
  const Log log{{.screen = LogLevel::kSilent, .file = temporary / "log"}};
};

TEST_F(RolloutFolder, KeepsAllBits) {
  RolloutAnswer answer = answer_of(0, 0, 6);
  answer.ids = {0, -1, std::numeric_limits<int64_t>::max(), 1, 2, 3};
  const float payload = std::bit_cast<float>(uint32_t{0x7fc12345});
  answer.log_probabilities = {-0.0,
                              std::bit_cast<double>(uint64_t{0xfff8dead'beef1234}),
                              static_cast<double>(payload),
                              -std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::denorm_min(),
                              -1.0 / 3};
  const RolloutPrompt prompt = prompt_of(0, R"({"prompt": "3 + 4 = ?", "answer": "7", "text": "ü\n"})");
  const Score score{.value = 0.1 + 0.2, .parts = {{"exact", -0.0}, {"style", 0.3}}, .text = "a\nb"};
  {
    RolloutStep step = open();
    step.begin(prompt);
    step.add(answer);
    step.add(RolloutScore{0, 0, score});
    step.add(RolloutScore{0, 1, {.is_fault = true}});
    EXPECT_EQ(step.path(), folder + "/step-000001/start-0001-rank-00000.records");
  }
  RolloutStep again = open();
  again.begin(prompt);
  ASSERT_NE(again.answer(0, 0), nullptr);
  EXPECT_EQ(bytes_of(AnswerRecord{"", *again.answer(0, 0)}), bytes_of(AnswerRecord{"", answer}));
  EXPECT_EQ(std::bit_cast<uint64_t>(again.answer(0, 0)->log_probabilities[1]), 0xfff8dead'beef1234u);
  EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<float>(again.answer(0, 0)->log_probabilities[2])), 0x7fc12345u);
  ASSERT_NE(again.score(0, 0), nullptr);
  EXPECT_EQ(bytes_of(ScoreRecord{"", "", {0, 0, *again.score(0, 0)}}), bytes_of(ScoreRecord{"", "", {0, 0, score}}));
  ASSERT_NE(again.score(0, 1), nullptr);
  EXPECT_TRUE(again.score(0, 1)->is_fault);
  EXPECT_EQ(again.score(0, 1)->value, std::nullopt);
  EXPECT_EQ(again.answer(0, 1), nullptr);
  EXPECT_EQ(again.path(), folder + "/step-000001") << "nothing was added, so no file is written";
  const std::vector<StoredGroup> groups = read_rollouts(folder, 1);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].prompt, prompt);
  ASSERT_EQ(groups[0].answers.size(), 1u);
  EXPECT_EQ(groups[0].answers[0].score->text, "a\nb");
  EXPECT_EQ(rollout_id(1, 0, 3), "1/0/3");
}

TEST_F(RolloutFolder, RefusesAnswersThatDoNotFit) {
  RolloutStep step = open();
  EXPECT_THAT(test::thrown_message([&] { step.add(answer_of(0, 0)); }),
              HasSubstr("[rollouts] prompt 0 must be begun before its answers"));
  EXPECT_THAT(test::thrown_message([&] { step.score(4, 0); }), HasSubstr("prompt 4 must be begun"));
  step.begin(prompt_of(0));
  EXPECT_THAT(test::thrown_message([&] { step.add(answer_of(0, -1)); }), HasSubstr("must be 0 or more: got -1"));
  RolloutAnswer answer = answer_of(0, 0);
  answer.log_probabilities.pop_back();
  EXPECT_THAT(test::thrown_message([&] { step.add(answer); }),
              HasSubstr("a log-probability for each token: got 2 for 3"));
}

TEST_F(RolloutFolder, DrawsATornRecordAgain) {
  std::string file;
  size_t whole_bytes = 0;
  {
    RolloutStep step = open();
    draw(step, 1, 2);
    file = step.path();
    whole_bytes = fs::file_size(file);
    draw(step, 1, 3);
  }
  const std::string bytes = test::read_all(file), whole = seen(folder);
  ASSERT_GT(bytes.size(), whole_bytes + 100);
  int64_t number = 100'000;
  // Writes a step of its own, reads it, and continues it.
  const auto expect_continued = [&](const std::string& content, int64_t stored) {
    const std::string place = concat(folder, "/step-", ++number);
    fs::create_directory(place);
    std::ofstream(place + "/start-0001-rank-00000.records", std::ios::binary) << content;
    ASSERT_EQ(answers_in(folder, number).size(), stored) << content.size();
    RolloutStep step = open(0, kDigests, number);
    ASSERT_EQ(draw(step, 1, 3), 3 - stored) << content.size();
    ASSERT_EQ(step.path(), place + "/start-0002-rank-00000.records");
    ASSERT_EQ(seen(folder, number), whole) << content.size();
    RolloutStep again = open(0, kDigests, number);
    ASSERT_EQ(draw(again, 1, 3), 0) << content.size();
  };
  for (size_t end = whole_bytes; end < bytes.size(); ++end) expect_continued(bytes.substr(0, end), 2);
  for (const size_t end : {0, 7, 20, 25}) expect_continued(bytes.substr(0, end), 0);
  // Tails whose bytes are there but wrong, as a power failure may leave them.
  expect_continued(bytes.substr(0, whole_bytes) + std::string(bytes.size() - whole_bytes, '\0'), 2);
  expect_continued(bytes.substr(0, bytes.size() - 1) + "?", 2);
}

TEST_F(RolloutFolder, RefusesDamageBeforeAnIntactRecord) {
  std::string file;
  std::vector<size_t> begins{20};  // after the line with the version
  {
    RolloutStep step = open();
    for (int64_t answers = 1; answers <= 3; ++answers) {
      draw(step, 1, answers);
      begins.push_back(fs::file_size(step.path()));
    }
    file = step.path();
  }
  const std::string bytes = test::read_all(file);
  const auto put = [&](size_t byte, char value) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(byte)).put(value);
  };
  const auto message_with = [&](size_t byte) {
    put(byte, static_cast<char>(bytes[byte] ^ 0x10));
    const std::string message = test::thrown_message([&] { open(); });
    put(byte, bytes[byte]);
    return message;
  };
  for (size_t byte = begins[0]; byte < begins[2]; ++byte) {
    const std::string message = message_with(byte);
    ASSERT_THAT(message, HasSubstr("[rollouts] " + file + " is damaged at byte ")) << byte;
    ASSERT_THAT(message, HasSubstr("delete the file, and a resumed run draws its answers again"));
    if (byte >= begins[1]) ASSERT_THAT(message, HasSubstr(concat("byte ", begins[1], ": "))) << byte;
  }
  EXPECT_THAT(message_with(begins[2] - 1), HasSubstr(concat("an intact record follows at byte ", begins[2], ";")));
  EXPECT_EQ(message_with(begins[2] + 3), "") << "the last record is a torn one";
  EXPECT_THAT(message_with(3), HasSubstr("must begin with the line \"colossal rollouts 1\""));
  // An intact record of another version.
  fs::remove(file);
  AppendedRecords(file).append("\x09 later");
  EXPECT_THAT(test::thrown_message([&] { read_rollouts(folder, 1); }), HasSubstr("got another record at byte 20"));
}

TEST_F(RolloutFolder, WarnsOfAFullDiskAndGoesOn) {
  RolloutStep step = open();
  draw(step, 1, 2, 1000);  // the limit below applies to the log as well, which is much smaller
  const auto bytes = static_cast<rlim_t>(fs::file_size(step.path()));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG, as it does with ENOSPC
  for (rlim_t room = 0; room < 200; room += 7) {  // a part of the record fits
    rlimit small = before;
    small.rlim_cur = bytes + room;
    setrlimit(RLIMIT_FSIZE, &small);
    step.add(answer_of(0, 7, 30));
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(fs::file_size(step.path()), bytes);
    EXPECT_THAT(answers_in(folder), ElementsAre("0/0", "0/1"));
  }
  signal(SIGXFSZ, handler);
  ASSERT_NE(step.answer(0, 7), nullptr) << "the run continues with the answer";
  const std::string warning = logged();
  EXPECT_THAT(warning, HasSubstr("rollouts of step 1 are not stored: cannot write to " + step.path() + ": "));
  EXPECT_THAT(warning, HasSubstr("a resumed run draws or scores these answers again"));
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << "one warning for a step";
  step.add(answer_of(0, 2));
  EXPECT_THAT(answers_in(folder), ElementsAre("0/0", "0/1", "0/2"));
  RolloutStep again = open();
  again.begin(prompt_of(0));
  EXPECT_EQ(again.answer(0, 7), nullptr);
}

TEST_F(RolloutFolder, GoesOnWithoutAFolder) {
  std::ofstream(folder) << "a file where the folder should be";
  const RolloutRecords records(folder, 0, log);
  EXPECT_THAT(test::thrown_message([&] { records.open(1, kDigests); }), HasSubstr("cannot read the folder"));
  fs::remove(folder);
  RolloutStep step = open();
  std::ofstream(folder) << "a file where the folder should be";
  EXPECT_EQ(draw(step, 1, 2), 2);
  EXPECT_NE(step.answer(0, 1), nullptr);
  EXPECT_THAT(logged(), HasSubstr("rollouts of step 1 are not stored: cannot create the folder"));
  // The prompt is stored as soon as it can be.
  fs::remove(folder);
  step.add(answer_of(0, 2));
  EXPECT_THAT(answers_in(folder), ElementsAre("0/2"));
}

TEST_F(RolloutFolder, IgnoresRecordsOfOtherDigests) {
  const RolloutDigests other{.draws = "weights 3, seed 8", .scores = kDigests.scores};
  {
    RolloutStep step = open();
    draw(step, 3, 2);
    step.add(score_of(0, 0, 1));
  }
  const std::string before = seen(folder);
  {
    RolloutStep step = open(0, other);
    step.begin(prompt_of(0));
    EXPECT_EQ(step.answer(0, 0), nullptr);
    EXPECT_EQ(step.score(0, 0), nullptr);
    EXPECT_EQ(draw(step, 2, 1), 2);
  }
  EXPECT_THAT(answers_in(folder), ElementsAre("0/0", "1/0")) << "the last digest's answers, without its elder's scores";
  {
    RolloutStep step = open();
    EXPECT_EQ(draw(step, 3, 2), 0) << "the answers of the first digest are still there";
    ASSERT_NE(step.score(0, 0), nullptr);
    EXPECT_EQ(step.score(0, 0)->value, 1);
  }
  EXPECT_EQ(seen(folder), before) << "a reader sees the digest of the last start";
  // Scores have a digest of their own, which does not concern answers.
  RolloutStep rescored = open(0, {.draws = kDigests.draws, .scores = "number"});
  EXPECT_EQ(draw(rescored, 3, 2), 0);
  EXPECT_EQ(rescored.score(0, 0), nullptr);
  rescored.add(score_of(0, 0, 0.5));
  EXPECT_THAT(answers_in(folder), ElementsAre("0/0=0.5", "0/1", "1/0", "1/1", "2/0", "2/1"));
}

TEST_F(RolloutFolder, IgnoresAnswersToAnotherPrompt) {
  {
    RolloutStep step = open();
    draw(step, 2, 1);
  }
  RolloutStep step = open();
  RolloutPrompt edited = prompt_of(0, R"({"answer": "8"})");
  step.begin(edited);
  EXPECT_EQ(step.answer(0, 0), nullptr);
  step.begin(prompt_of(1));
  EXPECT_NE(step.answer(1, 0), nullptr);
  EXPECT_THAT(answers_in(folder), ElementsAre("1/0"));
  step.add(answer_of(0, 0));
  EXPECT_EQ(read_rollouts(folder, 1)[0].prompt, edited);
}

TEST_F(RolloutFolder, JoinsTheFilesOfSeveralRanks) {
  // The order of arrival differs: rank 1 is first or last, scores precede answers or follow them.
  std::vector<std::string> results;
  for (const bool is_late : {false, true}) {
    fs::remove_all(folder);
    RolloutStep first = open(0), second = open(1);
    const auto draw_of = [&](RolloutStep& step, std::vector<int64_t> prompts, std::vector<int64_t> numbers) {
      for (const int64_t p : prompts) {
        step.begin(prompt_of(p));
        for (const int64_t n : numbers) step.add(answer_of(p, n));
      }
    };
    const auto score = [&] {
      for (const int64_t p : {3, 0, 1, 2}) {
        first.begin(prompt_of(p));
        first.add(score_of(p, 1, static_cast<double>(p)));
      }
    };
    if (is_late) score();
    draw_of(first, is_late ? std::vector<int64_t>{2, 0} : std::vector<int64_t>{0, 2}, {0, 1});
    draw_of(second, {1, 3}, is_late ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1});
    if (!is_late) score();
    EXPECT_NE(first.path(), second.path());
    results.push_back(seen(folder));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(answers_in(folder), ElementsAre("0/0", "0/1=0", "1/0", "1/1=1", "2/0", "2/1=2", "3/0", "3/1=3"));
  // One rank continues the run of two.
  RolloutStep step = open(0);
  EXPECT_EQ(draw(step, 4, 2), 0);
  ASSERT_NE(step.score(3, 1), nullptr);
  EXPECT_EQ(step.score(3, 1)->value, 3);
}

TEST_F(RolloutFolder, StoresAPromptOncePerStep) {
  const RolloutPrompt prompt = prompt_of(0, R"({"prompt": "seen once"})");
  for (int start = 0; start < 3; ++start) {
    RolloutStep drawing = open(0), scoring = open(1);
    for (RolloutStep* step : {&drawing, &scoring}) step->begin(prompt);
    drawing.add(answer_of(0, start));
    drawing.begin(prompt);
    scoring.add(score_of(0, start, 1));
  }
  std::string all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all += test::read_all(entry.path());
  const size_t first = all.find("seen once");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(all.find("seen once", first + 1), std::string::npos);
  EXPECT_THAT(answers_in(folder), ElementsAre("0/0=1", "0/1=1", "0/2=1"));
}

// A rank opens a step again before what it has is closed, as a second phase of the step does.
TEST_F(RolloutFolder, GivesEachOpenStepAFileOfItsOwn) {
  RolloutStep first = open(), second = open();
  draw(first, 1, 1);
  second.begin(prompt_of(0));
  second.add(answer_of(0, 1));
  first.add(answer_of(0, 2));
  EXPECT_EQ(first.path(), folder + "/step-000001/start-0001-rank-00000.records");
  EXPECT_EQ(second.path(), folder + "/step-000001/start-0002-rank-00000.records");
  EXPECT_THAT(answers_in(folder), ElementsAre("0/0", "0/1", "0/2"));
  EXPECT_EQ(logged(), "");
}

// The reader waits in a pipe until the step was removed: then it meets a missing file, or has read all other files.
TEST_F(RolloutFolder, ReadsNothingOfAStepThatIsRemovedMeanwhile) {
  for (const int rank : {0, 2}) {
    {
      RolloutStep step = open(1);
      draw(step, 1, 1);
    }
    const std::string pipe = concat(folder, "/step-000001/start-0001-rank-0000", rank, ".records");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::vector<StoredGroup> groups(1);
    std::string message;
    std::thread reader([&] { message = test::thrown_message([&] { groups = read_rollouts(folder, 1); }); });
    const int writer = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);  // returns when the reader has opened the pipe
    RolloutRecords(folder, 0, log).remove_before(2);
    ::close(writer);
    reader.join();
    EXPECT_EQ(message, "") << rank;
    EXPECT_THAT(groups, IsEmpty()) << rank;
    EXPECT_THAT(rollout_steps(folder), IsEmpty());
  }
}

TEST(RolloutDigests, FollowValuesAlone) {
  const auto digest = [](const char* text) { return digest_of(nlohmann::json::parse(text)); };
  EXPECT_EQ(digest(R"({"seed": 7, "keys": {"a": 1.5, "b": "x"}})"), digest(R"({"keys":{"b":"x","a":1.5},"seed":7})"));
  EXPECT_EQ(digest(R"({"seed": 7})"), "84498cf2c1379270aa9c27c37fdf0536") << "as in the files of earlier versions";
  std::set<std::string> all;
  for (const char* text : {"1", "1.0", R"("1")", "[1]", "0.1", "0.10000000000000002", "null", R"({"1":1})"})
    all.insert(digest(text));
  EXPECT_EQ(all.size(), 8u);
  EXPECT_THAT(test::thrown_message([] { digest_of("\xff"); }), HasSubstr("[rollouts] a digest needs texts in UTF-8"));
}

TEST_F(RolloutFolder, RemovesOldSteps) {
  const RolloutRecords records(folder, 0, log);
  records.remove_before(5);  // there is no folder
  EXPECT_THAT(rollout_steps(folder), IsEmpty());
  for (const int64_t number : {3, 12, 4, 1'000'000}) {
    RolloutStep step = open(0, kDigests, number);
    draw(step, 1, 1);
  }
  temporary.write("rollouts/.step-000003/left by a kill", "");  // and the step was drawn again
  fs::create_directories(folder + "/step-5");
  fs::create_directories(folder + "/step-of-a-user");
  EXPECT_THAT(rollout_steps(folder), ElementsAre(3, 4, 12, 1'000'000));
  records.remove_before(12);
  EXPECT_THAT(rollout_steps(folder), ElementsAre(12, 1'000'000));
  EXPECT_FALSE(fs::exists(folder + "/.step-000003"));
  EXPECT_TRUE(fs::exists(folder + "/step-of-a-user"));
  EXPECT_THAT(answers_in(folder, 12), ElementsAre("0/0"));
  EXPECT_THAT(read_rollouts(folder, 3), IsEmpty());
  EXPECT_EQ(logged(), "");
}

// A process is killed while it writes. What it had stored is there, and further starts add only what is missing.
TEST_F(RolloutFolder, LosesUnfinishedAnswersAloneIfItIsKilled) {
  constexpr int64_t kPrompts = 4, kAnswers = 40, kTokens = 1000, kAllowed = 20;
  const auto finish = [&](RolloutStep& step) {
    const int64_t drawn = draw(step, kPrompts, kAnswers, kTokens);
    for (int64_t p = 0; p < kPrompts; ++p) step.add(score_of(p, 0, 0.25));
    return drawn;
  };
  int64_t stored = 0;
  for (int kills = 0; kills < 6; ++kills) {
    int allowed[2], confirmed[2];
    ASSERT_EQ(::pipe(allowed), 0);
    ASSERT_EQ(::pipe(confirmed), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RolloutStep step = open();
      char byte = 0;
      for (int64_t p = 0; p < kPrompts; ++p) {
        step.begin(prompt_of(p));
        for (int64_t n = 0; n < kAnswers; ++n) {
          if (step.answer(p, n)) continue;
          if (::read(allowed[0], &byte, 1) != 1) ::_exit(1);
          step.add(answer_of(p, n, kTokens));
          if (::write(confirmed[1], &byte, 1) != 1) ::_exit(1);  // only now the answer counts
        }
      }
      ::_exit(0);
    }
    ::close(confirmed[1]);
    // Some answers are allowed, and the child is killed after a part of them.
    char byte = 0;
    int64_t count = 0;
    EXPECT_EQ(::write(allowed[1], std::string(kAllowed, '1').data(), kAllowed), kAllowed);
    while (count < 3 * kills && ::read(confirmed[0], &byte, 1) == 1) ++count;
    ::kill(child, SIGKILL);
    while (::read(confirmed[0], &byte, 1) == 1) ++count;
    for (const int end : {allowed[0], allowed[1], confirmed[0]}) ::close(end);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto found = static_cast<int64_t>(answers_in(folder).size());
    EXPECT_GE(found, stored + count);
    EXPECT_LE(found, stored + count + 1) << "an answer may be stored and not yet confirmed";
    stored = found;
  }
  RolloutStep step = open(), undisturbed = RolloutRecords(temporary / "whole", 0, log).open(1, kDigests);
  EXPECT_EQ(finish(step), kPrompts * kAnswers - stored);
  EXPECT_EQ(finish(undisturbed), kPrompts * kAnswers);
  EXPECT_EQ(seen(folder), seen(temporary / "whole"));
}

}  // namespace
}  // namespace colossal::align::rollout_records_test
