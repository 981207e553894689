// Scores from verifiers and commands. The scripts are small programs of sh; what goes wrong in one has its message, and
// scoring goes on afterwards. A test waits only for timeouts, of tenths of seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "colossal/align/rewards/command_scorer.h"
#include "colossal/align/rewards/reward_lines.h"
#include "colossal/align/rewards/verifier_scorer.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::align::rewards_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr double kForEver = std::numeric_limits<double>::infinity();

Answer answer_of(const std::string& id, const std::string& completion = "12", json members = {{"answer", "12"}}) {
  members["prompt"] = "5 + 7 =";
  return {.id = id,
          .line = std::make_shared<text::PromptLine>(text::PromptLine{std::move(members), "prompts.jsonl, line 1"}),
          .completion = {.text = completion, .tokens = 3},
          .where = "record " + id};
}

std::vector<Answer> answers_of(size_t count) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < count; ++i) answers.push_back(answer_of(std::to_string(i)));
  return answers;
}

/// A script of sh that sets $id of each line and does `work`.
std::vector<std::string> script(const std::string& work, const std::string& before = "") {
  return {"sh", "-c",
          before + "\nwhile read -r line; do id=${line##*'\"id\":\"'}; id=${id%%'\"'*}\n" + work + "\ndone"};
}
const std::string kSay = "echo \"{\\\"id\\\": \\\"$id\\\", \\\"score\\\": $score}\"";
const std::string kGood = "score=1; " + kSay;

RewardCommand command(std::vector<std::string> words, int workers = 1) {
  return {.command = std::move(words), .workers = workers};
}

/// Scores one answer by a worker that does `bad` for the answer "bad" only. Returns the message, and expects that the
/// next answer gets its score from the same scorer.
std::string message_of(const std::string& bad, double timeout = 60, int retries = 0) {
  RewardCommand bad_one = command(script("if [ $id = bad ]; then\n" + bad + "\nelse " + kGood + "; fi"));
  bad_one.timeout = timeout, bad_one.retries = retries;
  CommandScorer scorer(bad_one);
  const std::string message = test::thrown_message([&] { scores_of(scorer, {answer_of("bad")}); });
  EXPECT_EQ(scorer.waiting(), 0u);
  bool is_scored = false;
  for (int tries = 0; !is_scored && tries < 2; ++tries) {  // output without an answer may arrive late, as an error
    const std::string later =
        test::thrown_message([&] { is_scored = scores_of(scorer, {answer_of("next")})[0].value == 1; });
    EXPECT_EQ(is_scored, later.empty()) << later;
  }
  EXPECT_TRUE(is_scored);
  return message;
}

/// Returns true if the process ends within seconds, also as a zombie of another parent.
bool ends(pid_t process) {
  for (int i = 0; i < 10000; ++i, usleep(1000)) {
    const std::string stat = "/proc/" + std::to_string(process) + "/stat";
    if (!std::filesystem::exists(stat)) return true;
    try {
      const std::string text = read_file(stat, 4096);
      if (const size_t at = text.rfind(") "); at != std::string::npos && text[at + 2] == 'Z') return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

TEST(RewardLines, HaveTheMembersOfTheDataLine) {
  const Answer answer = answer_of("3/0/1", "a\xff", {{"answer", 12}, {"id", "own"}, {"tests", {1, 2}}});
  EXPECT_EQ(
      line_to_scorer(answer),
      "{\"answer\":12,\"completion\":\"a\xef\xbf\xbd\",\"id\":\"3/0/1\",\"prompt\":\"5 + 7 =\",\"tests\":[1,2]}\n");
}

TEST(RewardLines, ReadScores) {
  const Scored scored =
      score_in(R"({"id": "a", "score": -0.5, "scores": {"x": 1, "y": 0}, "text": "so", "other": []})");
  EXPECT_EQ(scored.id, "a");
  EXPECT_EQ(scored.score.value, -0.5);
  EXPECT_THAT(scored.score.parts, ElementsAre(Pair("x", 1), Pair("y", 0)));
  EXPECT_EQ(scored.score.text, "so");
  EXPECT_FALSE(score_in(R"({"id": "a", "score": null})").score.value.has_value());
}

TEST(RewardLines, RefuseOthers) {
  const auto refusal = [](const std::string& line) { return test::thrown_message([&] { score_in(line); }); };
  EXPECT_THAT(refusal("0.5"), HasSubstr("each line must be a JSON object: got 0.5"));
  EXPECT_THAT(refusal("loading ..."), HasSubstr("print everything else to stderr"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": NaN})"), HasSubstr("JSON has no NaN and no Infinity"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": -Infinity})"), HasSubstr("JSON has no NaN and no Infinity"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": 1e999})"), HasSubstr("each line must be a JSON object"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": "1"})"),
              HasSubstr("the score must be a finite number, or null for no score: got \"1\""));
  EXPECT_THAT(refusal(R"({"id": "a", "score": true})"), HasSubstr("got true"));
  EXPECT_THAT(refusal(R"({"id": "a"})"), HasSubstr("the line must have a `score`"));
  EXPECT_THAT(refusal(R"({"score": 1})"), HasSubstr("the line must have the `id`"));
  EXPECT_THAT(refusal(R"({"id": 3, "score": 1})"), HasSubstr("the line must have the `id`"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": 1, "scores": {"x": null}})"),
              HasSubstr("finite numbers, x too: got null"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": 1, "scores": 2})"), HasSubstr("`scores` must be an object"));
  EXPECT_THAT(refusal(R"({"id": "a", "score": 1, "text": 2})"), HasSubstr("`text` must be a text: got 2"));
}

TEST(VerifierScorer, SumsWeightedVerifiers) {
  VerifierScorer scorer(text::built_in_verifiers(), {"exact", "length"}, {2, -0.5});
  const std::vector<Score> scores = scores_of(scorer, {answer_of("a", "12\n", {{"answer", "12"}, {"max_tokens", 2}}),
                                                       answer_of("b", "13", {{"answer", "12"}, {"max_tokens", 3}})});
  EXPECT_EQ(scores[0].value, 2);
  EXPECT_THAT(scores[0].parts, ElementsAre(Pair("exact", 1), Pair("length", 0)));
  EXPECT_EQ(scores[0].text, "length: 3 tokens, at most 2");
  EXPECT_EQ(scores[1].value, -0.5);
  EXPECT_EQ(scorer.waiting(), 0u);
}

TEST(VerifierScorer, RefusesWhatDoesNotFit) {
  const text::Verifiers verifiers = text::built_in_verifiers();
  const auto refusal = [&](std::vector<std::string> names, std::vector<double> weights = {}) {
    return test::thrown_message([&] { VerifierScorer(verifiers, names, weights); });
  };
  EXPECT_EQ(refusal({}), "[reward] a reward must have at least one verifier: got none");
  EXPECT_THAT(refusal({"exact"}, {1, 2}), HasSubstr("one number for each verifier: got 2 for exact"));
  EXPECT_THAT(refusal({"exact"}, {NAN}), HasSubstr("a weight must be a finite number"));
  EXPECT_THAT(refusal({"exact", "exact"}), HasSubstr("got exact twice"));
  EXPECT_THAT(refusal({"exac"}), HasSubstr("did you mean `exact`?"));
  VerifierScorer scorer(verifiers, {"regex"});
  EXPECT_THAT(test::thrown_message([&] { scorer.check(*answer_of("a").line); }), HasSubstr("regex reads `pattern`"));
  EXPECT_THAT(test::thrown_message([&] { scores_of(scorer, {answer_of("a")}); }), HasSubstr("prompts.jsonl, line 1"));
  EXPECT_EQ(scorer.waiting(), 0u);
}

TEST(VerifierScorer, ReturnsScoresBeforeAnError) {
  VerifierScorer scorer(text::built_in_verifiers(), {"exact"});
  scorer.add(answer_of("good")), scorer.add(answer_of("bad", "12", {})), scorer.add(answer_of("lost"));
  EXPECT_EQ(scorer.waiting(), 3u);
  ASSERT_EQ(scorer.take(0).size(), 1u);
  EXPECT_EQ(scorer.waiting(), 2u);
  EXPECT_THAT(test::thrown_message([&] { scorer.take(0); }), HasSubstr("exact reads `answer`"));
  EXPECT_EQ(scores_of(scorer, {answer_of("lost")})[0].value, 1);
}

TEST(CommandScorer, ScoresEachAnswerById) {
  CommandScorer scorer(command(script("score=$id; " + kSay), 3));
  const std::vector<Score> scores = scores_of(scorer, answers_of(20));
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].value, static_cast<double>(i));
}

// The first answer is scored only after the second one.
TEST(CommandScorer, AssignsScoresThatArriveInAnotherOrder) {
  const test::TemporaryFolder folder;
  const std::string done = folder / "done";
  CommandScorer scorer(
      command(script("if [ $id = 0 ]; then while [ ! -e " + done + " ]; do sleep 0.01; done; fi\nscore=$id; " + kSay +
                     "\n[ $id = 0 ] || : >" + done),
              2));
  scorer.add(answer_of("0")), scorer.add(answer_of("1"));
  std::vector<std::string> order;
  while (scorer.waiting() > 0)
    for (const Scored& one : scorer.take(kForEver)) {
      order.push_back(one.id);
      EXPECT_EQ(one.score.value, std::stod(one.id));
    }
  EXPECT_THAT(order, ElementsAre("1", "0"));
}

TEST(CommandScorer, StartsEachWorkerOnce) {
  const test::TemporaryFolder folder;
  const std::string started = folder / "started";
  CommandScorer scorer(command(script(kGood, "echo x >>" + started), 2));
  scores_of(scorer, answers_of(5));
  scores_of(scorer, answers_of(5));
  EXPECT_EQ(read_file(started, 100), "x\nx\n");
}

TEST(CommandScorer, WorksWhileTheCallerIsBusy) {
  CommandScorer scorer(command(script(kGood), 1));
  scorer.add(answer_of("a")), scorer.add(answer_of("b"));
  EXPECT_EQ(scorer.waiting(), 2u);
  size_t scored = 0;
  while (scored < 2) scored += scorer.take(0).size();
  EXPECT_EQ(scorer.waiting(), 0u);
  EXPECT_TRUE(scorer.take(kForEver).empty()) << "nothing waits";
}

// A pipe has room for a part of the line alone, and nobody reads the rest before the time of the answer has ended.
TEST(CommandScorer, WaitsForALongLineAfterAPause) {
  RewardCommand wordy =
      command(script("x=$(head -c 300000 /dev/zero | tr '\\0' x)\n"
                     "echo \"{\\\"id\\\": \\\"$id\\\", \\\"score\\\": 1, \\\"text\\\": \\\"$x\\\"}\""));
  wordy.timeout = 0.4, wordy.retries = 0;
  CommandScorer scorer(wordy);
  scorer.add(answer_of("a"));
  usleep(500000);
  EXPECT_EQ(scorer.take(5).size(), 1u);
}

TEST(CommandScorer, TakesAnAnswerWithoutAScore) {
  CommandScorer scorer(command(script("score=null; " + kSay)));
  const Score score = scores_of(scorer, {answer_of("a")})[0];
  EXPECT_FALSE(score.value.has_value());
  EXPECT_FALSE(score.is_fault);
}

// A script without flush=True would hang.
TEST(CommandScorer, KeepsPythonFromBufferingItsOutput) {
  CommandScorer scorer(command(script("score=$PYTHONUNBUFFERED; " + kSay)));
  EXPECT_EQ(scores_of(scorer, {answer_of("a")})[0].value, 1);
}

TEST(CommandScorer, RefusesWhatCannotStart) {
  EXPECT_EQ(test::thrown_message([] { CommandScorer scorer(command({"no-such-program", "x"})); }),
            "[reward] the command `no-such-program x` cannot be started: cannot start no-such-program: No such file or "
            "directory; give the name of a program in PATH, or the path of an executable file");
  EXPECT_THAT(test::thrown_message([] { CommandScorer scorer(command({})); }), HasSubstr("at least one word"));
  EXPECT_THAT(test::thrown_message([] { CommandScorer scorer(command({"cat"}, 0)); }), HasSubstr("workers must be"));
  EXPECT_THAT(test::thrown_message([] { CommandScorer scorer({.command = {"cat"}, .timeout = 0}); }),
              HasSubstr("timeout must be above 0"));
  EXPECT_THAT(test::thrown_message([] { CommandScorer scorer({.command = {"cat"}, .retries = -1}); }),
              HasSubstr("retries must be at least 0"));
}

TEST(CommandScorer, RefusesAnIdTwice) {
  CommandScorer scorer(command(script(kGood)));
  scorer.add(answer_of("a"));
  EXPECT_THAT(test::thrown_message([&] { scorer.add(answer_of("a")); }), HasSubstr("got a twice"));
  scorer.forget();
  EXPECT_THAT(test::thrown_message([&] { scores_of(scorer, {answer_of("b"), answer_of("b")}); }),
              HasSubstr("got b twice"));
  EXPECT_EQ(scores_of(scorer, {answer_of("b")})[0].value, 1);
}

TEST(CommandScorer, ReportsAnExit) {
  const std::string message = message_of("echo first >&2; echo 'No module named x' >&2; exit 3");
  EXPECT_THAT(message, StartsWith("[reward] the command `sh -c "));
  EXPECT_THAT(message, HasSubstr("` ended with status 3; it was given {\"answer\":\"12\",\"completion\":\"12\",\"id\":"
                                 "\"bad\",\"prompt\":\"5 + 7 =\"} (record bad); its stderr ended with:\nfirst\nNo "
                                 "module named x"));
  EXPECT_THAT(message_of("kill -KILL $$"), HasSubstr("ended with status 137"));
  EXPECT_THAT(message_of("exit 0"), HasSubstr("ended with status 0"));
}

TEST(CommandScorer, ReportsAClosedOutput) {
  EXPECT_THAT(message_of("exec >&-; sleep 1000"), HasSubstr("closed its output"));
}

// Half a second may pass before the status of such a worker is known.
TEST(CommandScorer, DoesNotWaitForTheEndOfAWorker) {
  const test::TemporaryFolder folder;
  const std::string closed = folder / "closed";
  CommandScorer scorer(command({"sh", "-c", "read -r line; exec >&-; : >" + closed + "; sleep 1000"}));
  scorer.add(answer_of("a"));
  while (!std::filesystem::exists(closed)) usleep(1000);
  EXPECT_TRUE(scorer.take(0).empty());
  EXPECT_THAT(test::thrown_message([&] { scorer.take(kForEver); }), HasSubstr("closed its output"));
}

TEST(CommandScorer, ReportsWrongLines) {
  EXPECT_THAT(message_of("echo hello"), HasSubstr("printed a wrong line: each line must be a JSON object: got hello"));
  EXPECT_THAT(message_of("score=NaN; " + kSay), HasSubstr("JSON has no NaN"));
  EXPECT_THAT(message_of("score='\"high\"'; " + kSay),
              HasSubstr("must be a finite number, or null for no score: got \"high\""));
  EXPECT_THAT(message_of("id=other; " + kGood), HasSubstr("answered an id that it was not given: {\"id\": \"other\""));
}

TEST(CommandScorer, ReportsARepeatedId) {
  CommandScorer scorer(command(script(kGood + "; " + kGood)));
  const std::string message = test::thrown_message([&] {
    scores_of(scorer, {answer_of("a")});
    scores_of(scorer, {answer_of("b")});
  });
  EXPECT_THAT(message, HasSubstr("answered an id again: {\"id\": \"a\""));
}

TEST(CommandScorer, ReportsAHugeLine) {
  EXPECT_THAT(message_of("head -c 2000000 /dev/zero | tr '\\0' x; echo; sleep 1000"),
              HasSubstr("printed a line above 1048576 bytes: xxx"));
}

// Endless output of both kinds; a worker that hangs would be noticed only by its timeout.
TEST(CommandScorer, SurvivesFloods) {
  EXPECT_THAT(message_of("exec yes"), HasSubstr("each line must be a JSON object: got y"));
  EXPECT_THAT(message_of("yes >&2", 0.3), AllOf(HasSubstr("took longer than 0.3 seconds"), HasSubstr("\ny\ny\n")));
}

TEST(CommandScorer, ReportsATimeout) {
  EXPECT_THAT(message_of("sleep 1000", 0.2, 1),
              HasSubstr("took longer than 0.2 seconds for an answer, in 2 tries; raise `timeout`, or flush"));
}

// More than the pipe holds, for a worker that reads nothing.
TEST(CommandScorer, SurvivesAWorkerThatDoesNotRead) {
  RewardCommand deaf = command({"sleep", "1000"}, 2);
  deaf.timeout = 0.2, deaf.retries = 0;
  CommandScorer scorer(deaf);
  EXPECT_THAT(test::thrown_message([&] { scores_of(scorer, {answer_of("a", std::string(1 << 20, 'x'))}); }),
              HasSubstr("took longer than 0.2 seconds for an answer, in 1 tries; it did not read its line"));
}

// The first try leaves a file and hangs.
TEST(CommandScorer, TriesAgainAfterATimeout) {
  const test::TemporaryFolder folder;
  const std::string tried = folder / "tried";
  RewardCommand slow = command(script("if [ ! -e " + tried + " ]; then : >" + tried + "; sleep 1000; fi; " + kGood), 1);
  slow.timeout = 0.5;
  CommandScorer scorer(slow);
  EXPECT_EQ(scores_of(scorer, {answer_of("a")})[0].value, 1);
}

TEST(CommandScorer, KillsTheChildrenOfAWorker) {
  const test::TemporaryFolder folder;
  const std::string child = folder / "child";
  message_of("sleep 1000 & echo $! >" + child + "; wait", 0.5);
  EXPECT_TRUE(ends(std::stoi(read_file(child, 100))));
}

// A scorer that no longer exists has no processes.
TEST(CommandScorer, EndsItsWorkers) {
  const test::TemporaryFolder folder;
  const std::string pids = folder / "pids", closed = folder / "closed";
  {
    CommandScorer scorer(command({"sh", "-c",
                                  "echo $$ >>" + pids + "; read -r line; sleep 1000 & echo $! >>" + pids +
                                      "; cat >/dev/null; : >" + closed + "; sleep 1000"}));
    scorer.add(answer_of("a"));
    while (!std::filesystem::exists(pids) || std::ranges::count(read_file(pids, 100), '\n') < 2) scorer.take(0.01);
  }
  std::istringstream lines(read_file(pids, 100));
  for (pid_t process = 0; lines >> process;) EXPECT_TRUE(ends(process));
}

TEST(CommandScorer, LetsIdleWorkersFinish) {
  const test::TemporaryFolder folder;
  const std::string finished = folder / "finished";
  {
    CommandScorer scorer(command({"sh", "-c", script(kGood)[2] + "; : >" + finished}));
    scores_of(scorer, answers_of(1));
  }
  EXPECT_TRUE(std::filesystem::exists(finished));
}

TEST(CommandScorer, ReturnsScoresBeforeAnError) {
  CommandScorer scorer(command(script("[ $id = bad ] && exit 1; " + kGood), 1));
  for (const char* id : {"good", "bad", "lost"}) scorer.add(answer_of(id));
  std::vector<std::string> scored;
  EXPECT_THAT(test::thrown_message([&] {
                while (scorer.waiting() > 0)
                  for (const Scored& one : scorer.take(kForEver)) scored.push_back(one.id);
              }),
              HasSubstr("ended with status 1"));
  EXPECT_THAT(scored, ElementsAre("good"));
  EXPECT_EQ(scorer.waiting(), 0u);
}

TEST(CommandScorer, ForgetsAnswers) {
  CommandScorer scorer(command(script("[ $id = slow ] && sleep 1000; " + kGood), 1));
  scorer.add(answer_of("slow")), scorer.add(answer_of("next"));
  scorer.forget();
  EXPECT_EQ(scorer.waiting(), 0u);
  EXPECT_EQ(scores_of(scorer, {answer_of("next")})[0].value, 1);
}

// Both arrive before the caller asks.
TEST(CommandScorer, ReturnsScoresThatArriveWithAnError) {
  const test::TemporaryFolder folder;
  const std::string good = folder / "good", bad = folder / "bad";
  CommandScorer scorer(command(script("if [ $id = bad ]; then echo $$ >" + bad + ".part; mv " + bad + ".part " + bad +
                                      "; exit 1; fi\n" + kGood + "; : >" + good),
                               2));
  scorer.add(answer_of("good")), scorer.add(answer_of("bad"));
  while (!std::filesystem::exists(good) || !std::filesystem::exists(bad)) usleep(1000);
  ASSERT_TRUE(ends(std::stoi(read_file(bad, 100))));
  const std::vector<Scored> scored = scorer.take(kForEver);
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_EQ(scored[0].id, "good");
  EXPECT_EQ(scorer.waiting(), 1u);
  scorer.add(answer_of("more"));  // lost, too
  EXPECT_EQ(scorer.waiting(), 2u);
  EXPECT_THAT(test::thrown_message([&] { scorer.take(kForEver); }), HasSubstr("ended with status 1"));
  EXPECT_EQ(scorer.waiting(), 0u);
  EXPECT_EQ(scores_of(scorer, {answer_of("more")})[0].value, 1);
}

TEST(CommandScorer, GoesOnWithoutScoresIfAsked) {
  const std::string work = "case $id in 1) exit 2;; 2) echo no;; 3) sleep 1000;; *) " + kGood + ";; esac";
  RewardCommand faulty = command(script(work), 2);
  faulty.null_on_fault = true, faulty.timeout = 1, faulty.retries = 0;
  CommandScorer scorer(faulty);
  const std::vector<Score> scores = scores_of(scorer, answers_of(6));
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].value.has_value(), i == 0 || i > 3) << i;
    EXPECT_EQ(scores[i].is_fault, i > 0 && i <= 3) << i;
  }
  EXPECT_THAT(scores[1].text, HasSubstr("ended with status 2"));
  EXPECT_THAT(scores[2].text, HasSubstr("got no"));
  EXPECT_THAT(scores[3].text, HasSubstr("took longer than 1 seconds"));
}

// A process in between has a scorer whose worker has a child, and gets SIGKILL.
TEST(CommandScorer, EndsWithTheProcess) {
  const test::TemporaryFolder folder;
  const std::string pids = folder / "pids";
  const pid_t between = fork();
  if (between == 0) {
    CommandScorer scorer(
        command({"sh", "-c",
                 "sleep 1000 & echo $$ $! >" + pids + ".part; mv " + pids + ".part " + pids + "; read -r line; wait"}));
    scorer.add(answer_of("a"));
    for (;;) scorer.take(1);
  }
  while (!std::filesystem::exists(pids)) usleep(1000);
  ASSERT_EQ(::kill(between, SIGKILL), 0);
  ASSERT_EQ(waitpid(between, nullptr, 0), between);
  std::istringstream words(read_file(pids, 100));
  for (pid_t process = 0; words >> process;) EXPECT_TRUE(ends(process));
}

}  // namespace
}  // namespace colossal::align::rewards_test
