// Scores from a function at the other end of a socket, which the test plays.
#include "colossal/align/rewards/function_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "support/thrown_message.h"

namespace colossal::align::function_scorer_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

Answer answer_of(const std::string& id, const std::string& completion = "12") {
  return {.id = id,
          .line = std::make_shared<text::PromptLine>(text::PromptLine{{{"prompt", "5 + 7 ="}}, "line 1"}),
          .completion = {.text = completion},
          .where = "record " + id};
}

class FunctionScorers : public ::testing::Test {
 protected:
  FunctionScorers() { start(); }
  void start(bool null_on_fault = false) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    scorer.emplace(Descriptor(ends[0]), null_on_fault);
    other = Descriptor(ends[1]);
  }
  /// Reads the next line that the function is given.
  json given() {
    while (arrived.find('\n') == std::string::npos) {
      char buffer[4096];
      const ssize_t count = read(other.value(), buffer, sizeof buffer);
      if (count <= 0) return {};
      arrived.append(buffer, static_cast<size_t>(count));
    }
    const json line = json::parse(arrived.substr(0, arrived.find('\n')));
    arrived.erase(0, arrived.find('\n') + 1);
    return line;
  }
  void say(const std::string& line) { ASSERT_EQ(write(other.value(), line.data(), line.size()), ssize_t(line.size())); }
  void say(const json& line) { say(line.dump() + "\n"); }
  std::string taken() {
    return test::thrown_message([&] {
      while (scorer->waiting() > 0) scorer->take(10);
    });
  }

  std::optional<FunctionScorer> scorer;
  Descriptor other;
  std::string arrived;
};

TEST_F(FunctionScorers, AssignScoresById) {
  for (const char* id : {"a", "b", "c"}) scorer->add(answer_of(id));
  EXPECT_EQ(given(), json({{"id", "a"}, {"prompt", "5 + 7 ="}, {"completion", "12"}}));
  say({{"id", "c"}, {"score", 3}});
  say({{"id", "a"}, {"score", 1}});
  EXPECT_EQ(scorer->waiting(), 3u);
  const std::vector<Scored> first = scorer->take(10);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].id, "c");
  EXPECT_EQ(first[1].score.value, 1);
  EXPECT_TRUE(scorer->take(0).empty());
  EXPECT_EQ(scorer->waiting(), 1u);
}

TEST_F(FunctionScorers, ReportFailuresAndGoOn) {
  scorer->add(answer_of("a")), scorer->add(answer_of("b"));
  say({{"id", "a"}, {"error", "ValueError: no number"}});
  EXPECT_EQ(taken(),
            "[reward] the function that scores answers failed: ValueError: no number; it was given "
            "{\"completion\":\"12\",\"id\":\"a\",\"prompt\":\"5 + 7 =\"} (record a)");
  EXPECT_EQ(scorer->waiting(), 0u);
  scorer->add(answer_of("c"));
  say({{"id", "b"}, {"score", 7}});  // late, for a forgotten answer
  say({{"id", "c"}, {"score", 2}});
  const std::vector<Scored> scored = scorer->take(10);
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_EQ(scored[0].id, "c");
}

// The same answer is asked for again. The line for the forgotten one arrives first.
TEST_F(FunctionScorers, IgnoreLateLinesForTheSameId) {
  scorer->add(answer_of("a")), scorer->add(answer_of("b"));
  say({{"id", "a"}, {"error", "no"}});
  EXPECT_THAT(taken(), HasSubstr("failed: no"));
  scorer->add(answer_of("a")), scorer->add(answer_of("b"));
  say({{"id", "b"}, {"error", "late"}});
  say({{"id", "a"}, {"score", 1}});
  say({{"id", "b"}, {"score", 2}});
  std::map<std::string, std::optional<double>> values;
  while (scorer->waiting() > 0)
    for (const Scored& one : scorer->take(10)) values[one.id] = one.score.value;
  EXPECT_EQ(values, (std::map<std::string, std::optional<double>>{{"a", 1}, {"b", 2}}));
}

// Lines that the function never saw have no late lines; it gets the rest of the one that it saw in part.
TEST_F(FunctionScorers, ForgetLinesThatWereNotSent) {
  const std::string huge(1 << 20, 'x');
  scorer->add(answer_of("first")), scorer->add(answer_of("part", huge)), scorer->add(answer_of("unsent"));
  say({{"id", "first"}, {"error", "no"}});
  EXPECT_THAT(taken(), HasSubstr("failed: no"));
  scorer->add(answer_of("unsent"));
  std::vector<std::string> ids;
  while (scorer->waiting() > 0) {
    char buffer[1 << 16];
    const ssize_t count = recv(other.value(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count > 0) arrived.append(buffer, static_cast<size_t>(count));
    while (arrived.find('\n') != std::string::npos) {
      ids.push_back(given()["id"]);
      if (ids.size() > 1) say({{"id", ids.back()}, {"score", 1}});
    }
    scorer->take(0);
  }
  EXPECT_THAT(ids, ::testing::ElementsAre("first", "part", "unsent"));
}

TEST_F(FunctionScorers, ForgetAnswersIfAsked) {
  scorer->add(answer_of("a"));
  scorer->forget();
  EXPECT_EQ(scorer->waiting(), 0u);
  scorer->add(answer_of("b"));
  say({{"id", "a"}, {"score", 1}});
  say({{"id", "b"}, {"score", 2}});
  const std::vector<Scored> scored = scorer->take(10);
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_EQ(scored[0].score.value, 2);
}

TEST_F(FunctionScorers, ReportWrongLines) {
  const auto message = [&](const std::string& line) {
    scorer->add(answer_of("a"));
    say(line + "\n");
    return taken();
  };
  EXPECT_THAT(
      message(R"({"id": "a", "score": "high"})"),
      AllOf(HasSubstr("answered with a wrong line: the score must be a finite number, or null for no score: got"),
            HasSubstr("; it was given {"), HasSubstr("(record a)")));
  EXPECT_THAT(message(R"({"id": "z", "score": 1})"), HasSubstr("answered an id that does not wait: {\"id\": \"z\""));
  say({{"id", "a"}, {"score", 1}});  // the line that is late now
  scorer->add(answer_of("b"));
  say({{"id", "b"}, {"score", 1}});
  EXPECT_EQ(scorer->take(10).size(), 1u);
}

// It is unknown which answer such a line is for, so none can be scored after it.
TEST_F(FunctionScorers, EndAfterLinesWithoutAnId) {
  for (const auto& [line, text] :
       std::map<std::string, std::string>{{"{}", "answered with a wrong line: the line must have the `id`"},
                                          {"hello", "answered with a wrong line"},
                                          {R"({"id": "a", "score": NaN})", "JSON"},
                                          {std::string(100000, 'x'), "answered with a wrong line"}}) {
    start();
    scorer->add(answer_of("a"));
    say(line + "\n");
    EXPECT_THAT(taken(), HasSubstr(text));
    scorer->add(answer_of("b"));
    EXPECT_THAT(taken(), AllOf(HasSubstr(text), HasSubstr("; start the run again")));
  }
}

TEST_F(FunctionScorers, GoOnWithoutScoresIfAsked) {
  start(true);
  for (const char* id : {"a", "b", "c"}) scorer->add(answer_of(id));
  say({{"id", "a"}, {"error", "ValueError: no number"}});
  say({{"id", "b"}, {"score", "high"}});
  say({{"id", "c"}, {"score", 3}});
  const std::vector<Scored> scored = scorer->take(10);
  ASSERT_EQ(scored.size(), 3u);
  EXPECT_TRUE(scored[0].score.is_fault);
  EXPECT_FALSE(scored[0].score.value.has_value());
  EXPECT_THAT(scored[0].score.text, HasSubstr("failed: ValueError: no number; it was given {"));
  EXPECT_TRUE(scored[1].score.is_fault);
  EXPECT_EQ(scored[2].score.value, 3);
}

TEST_F(FunctionScorers, ReportTheEndOfTheOtherProcess) {
  scorer->add(answer_of("a"));
  other = Descriptor();
  EXPECT_EQ(taken(), "[reward] the function that scores answers has ended; start the run again");
  scorer->add(answer_of("b"));
  EXPECT_THAT(taken(), HasSubstr("has ended"));
}

// More than the socket holds: add() returns, and the rest follows while scores are taken.
TEST_F(FunctionScorers, DoNotWaitForAReader) {
  for (int i = 0; i < 20; ++i) scorer->add(answer_of(std::to_string(i), std::string(1 << 17, 'x')));
  EXPECT_TRUE(scorer->take(0).empty());
  size_t scored = 0;
  for (int i = 0; i < 20; ++i) {
    while (arrived.find('\n') == std::string::npos) {
      char buffer[1 << 16];
      const ssize_t count = recv(other.value(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (count > 0) arrived.append(buffer, static_cast<size_t>(count));
      scored += scorer->take(0).size();
    }
    say({{"id", given()["id"]}, {"score", i}});
  }
  while (scorer->waiting() > 0) scored += scorer->take(10).size();
  EXPECT_EQ(scored, 20u);
}

}  // namespace
}  // namespace colossal::align::function_scorer_test
