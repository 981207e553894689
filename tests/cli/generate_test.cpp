// `colossal generate`: files of prompts with their own options, and the reasons that end a completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "cli/outcome.h"
#include "colossal/base/json.h"
#include "support/generated_text.h"

namespace colossal::cli::generate_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Generate : public testing::Test {
 protected:
  void SetUp() override { test::write_model(folder, "llama-tiny"); }

  Outcome generate(std::vector<std::string> words) {
    words.insert(words.end(), {"--from", folder / "hf", "--tokenizer", "bytes"});
    if (std::find(words.begin(), words.end(), "--prompts") != words.end())
      words.insert(words.end(), {"--kv-cache", "1MiB"});
    return run_command("generate", words);
  }
  std::vector<json> answers(const std::string& lines, std::vector<std::string> words = {}) {
    words.insert(words.end(), {"--prompts", folder.write("prompts.jsonl", lines)});
    const Outcome outcome = generate(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    std::vector<json> all;
    std::istringstream out(outcome.out);
    for (std::string line; std::getline(out, line);) all.push_back(json::parse(line));
    return all;
  }
  std::string refusal(const std::string& lines) {
    return generate({"--prompts", folder.write("bad.jsonl", lines)}).err;
  }
  test::TemporaryFolder folder;
};

TEST_F(Generate, ReadsOptionsOfEachLine) {
  const std::vector<std::string> words{"--max-tokens", "6", "--temperature", "1"};
  const auto plain = answers("{\"prompt\": \"Hello\"}\n{\"prompt\": \"Hello\"}\n", words);
  const auto own = answers(
      "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"id\": {\"a\": 1}}\n\n"
      "{\"prompt\": \"Hello\", \"seed\": 0, \"id\": 7}\n"
      "{\"prompt\": \"Hello\", \"temperature\": 0, \"seed\": 9}\n",
      words);
  ASSERT_EQ(plain.size(), 2U);
  ASSERT_EQ(own.size(), 3U);
  EXPECT_EQ(own[0]["tokens"], 3);
  EXPECT_EQ(own[0]["id"], json({{"a", 1}}));
  EXPECT_EQ(plain[0]["text"].get<std::string>().find(own[0]["text"].get<std::string>()), 0U);
  EXPECT_EQ(own[1]["text"], plain[0]["text"]);  // prompt 1 uses seed + 1, because its line gives no seed
  EXPECT_NE(plain[0]["text"], plain[1]["text"]);
  EXPECT_EQ(own[2]["text"], answers("{\"prompt\": \"Hello\"}", {"--max-tokens", "6"})[0]["text"]);
  EXPECT_FALSE(plain[0].contains("id"));
}

TEST_F(Generate, RefusesLinesNestedTooDeeply) {
  const std::string deep = "{\"prompt\": \"x\", \"id\": " + std::string(100000, '[') + std::string(100000, ']') + "}\n";
  EXPECT_THAT(refusal("{\"prompt\": \"x\"}\n" + deep), HasSubstr("bad.jsonl line 2: the line: nested too deeply"));
  EXPECT_THAT(refusal("{\"prompt\": \n"), HasSubstr("bad.jsonl line 1: the line: not valid JSON"));
}

TEST_F(Generate, EndsAtStopStringsEverywhere) {
  std::vector<std::string> words{"--max-tokens", "8"};
  for (char letter = 'a'; letter <= 'z'; ++letter)  // the completion has only letters, for any weights of the model
    words.insert(words.end(), {"--logit-bias", std::to_string(int{letter}) + "=1000"});
  const std::string text = answers("{\"prompt\": \"Hello\"}", words)[0]["text"];
  ASSERT_EQ(text.size(), 8U);
  const std::string stop = text.substr(3, 2), want = text.substr(0, text.find(stop));
  const auto stopped =
      answers("{\"prompt\": \"Hello\", \"stop\": " + json(stop).dump() + "}\n{\"prompt\": \"Hello\"}", words);
  EXPECT_EQ(stopped[0]["text"], want);
  EXPECT_EQ(stopped[0]["ended"], "stop");
  EXPECT_EQ(stopped[1]["text"], text);
  words.insert(words.end(), {"--prompt", "Hello", "--stop", stop});
  EXPECT_EQ(generate(words).out, "Hello" + want + "\n");
}

TEST_F(Generate, StopsAndEndsInOneStep) {
  // The completion is "bbbbbbb...". A step has many draft tokens: one of them ends the sequence, and an earlier one
  // completes the stop string.
  for (size_t length = 1; length < 9; ++length) {
    const std::string line =
        json({{"prompt", "bbbb"}, {"stop", std::string(length, 'b')}, {"logit_bias", {{"98", 1000}}}}).dump();
    const auto stopped = answers(line, {"--max-tokens", "8", "--draft-tokens", "8"});
    EXPECT_EQ(stopped[0]["ended"], "stop") << length;
    EXPECT_EQ(stopped[0]["text"], "");
    EXPECT_EQ(stopped[0]["tokens"], length);
  }
}

TEST_F(Generate, UsesADraftModel) {
  test::TemporaryFolder other;
  test::write_model(other, "gpt2-tiny");
  const std::string lines = "{\"prompt\": \"Hello\"}\n{\"prompt\": \"bbbb\", \"logit_bias\": {\"98\": 1000}}";
  const auto plain = answers(lines, {"--max-tokens", "12"});
  for (const std::string& draft : {other / "hf", folder / "hf"}) {
    const auto drafted = answers(lines, {"--max-tokens", "12", "--draft", draft});
    ASSERT_EQ(drafted.size(), 2U);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(drafted[i]["text"], plain[i]["text"]);
  }
  // A model that drafts for itself always predicts correctly.
  const Outcome own = generate({"--prompts", folder / "prompts.jsonl", "--max-tokens", "12", "--draft", folder / "hf"});
  EXPECT_THAT(own.err, HasSubstr("16 draft tokens, 16 of them accepted"));
  EXPECT_EQ(generate({"--prompt", "Hello", "--max-tokens", "12", "--draft", folder / "hf"}).out,
            "Hello" + plain[0]["text"].get<std::string>() + "\n");
}

TEST_F(Generate, ReportsLogProbabilities) {
  const auto told = answers("{\"prompt\": \"Hello\", \"logprobs\": 2}\n{\"prompt\": \"Hello\"}", {"--max-tokens", "3"});
  EXPECT_FALSE(told[1].contains("logprobs"));
  ASSERT_EQ(told[0]["logprobs"].size(), 3U);
  for (const json& token : told[0]["logprobs"]) {
    ASSERT_EQ(token["best"].size(), 2U);
    EXPECT_EQ(token["best"][0]["id"], token["id"]);  // greedy
    EXPECT_EQ(token["best"][0]["logprob"], token["logprob"]);
    EXPECT_LT(token["best"][1]["logprob"].get<double>(), 0);
  }
  EXPECT_THAT(generate({"--prompt", "a", "--logprobs", "1"}).err, HasSubstr("need --prompts"));
}

TEST_F(Generate, AppliesBiasesAndPenalties) {
  const auto never = answers("{\"prompt\": \"a\", \"logit_bias\": {\"98\": 1000}}", {"--max-tokens", "3"});
  EXPECT_EQ(never[0]["text"], "bbb");
  EXPECT_EQ(generate({"--prompt", "a", "--max-tokens", "3", "--logit-bias", "98=1000", "--logit-bias", "99=2000",
                      "--presence-penalty", "1500"})
                .out,
            "acbc\n");
}

TEST_F(Generate, MatchesSchemas) {
  const std::string schema =
      R"({"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}, "s": {"enum": ["x", "yz"]}},
                                 "required": ["n", "s"]})";
  const std::string file = folder.write("schema.json", schema);
  for (const std::string draft_tokens : {"0", "4"}) {
    const auto all = answers(
        "{\"prompt\": \"a\", \"json_schema\": {\"type\": \"array\", \"items\": {\"const\": 7}, \"maxItems\": 3}}\n"
        "{\"prompt\": \"b\", \"temperature\": 3}\n{\"prompt\": \"b\", \"json_schema\": null}",
        {"--json-schema", file, "--max-tokens", "40", "--draft-tokens", draft_tokens, "--logit-bias", "32=-1000",
         "--logit-bias", "10=-1000"});
    EXPECT_TRUE(json::parse(all[0]["text"].get<std::string>()).is_array()) << all[0];
    const json object = json::parse(all[1]["text"].get<std::string>());
    EXPECT_TRUE(object["n"].is_number_integer() && object["s"].is_string()) << object;
    EXPECT_EQ(all[2]["ended"], "positions");
    const Outcome one =
        generate({"--prompt", "b", "--json-schema", file, "--max-tokens", "40", "--logit-bias", "32=-1000",
                  "--logit-bias", "10=-1000", "--temperature", "3", "--seed", "1", "--draft-tokens", draft_tokens});
    EXPECT_EQ(one.out, "b" + all[1]["text"].get<std::string>() + "\n");
  }
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"json_schema\": {\"contains\": {}}}"),
              testing::AllOf(HasSubstr("line 1"), HasSubstr("contains")));
  EXPECT_THAT(generate({"--prompt", "a", "--json-schema", folder.write("bad.json", "[]")}).err, HasSubstr("bad.json"));
}

TEST_F(Generate, RefusesOptionsWithoutEffect) {
  const auto refused = [&](std::vector<std::string> words, const std::string& what) {
    words.insert(words.end(), {"--prompt", "a", "--max-tokens", "1"});
    const Outcome outcome = generate(words);
    EXPECT_EQ(outcome.status, 2) << what;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(what));
  };
  refused({"--kv-cache", "1MiB", "--step-tokens", "7"},
          "--kv-cache and --step-tokens have no effect on a single --prompt");
  refused({"--top-k", "4", "--seed", "3"}, "--top-k and --seed have no effect at temperature 0");
  refused({"--top-p", "0.5"}, "--top-p has no effect at temperature 0");
  refused({"--min-p", "0.5"}, "--min-p has no effect at temperature 0");
  refused({"--group-size", "32"}, "--group-size has no effect without --quantize int8 or int4");
  refused({"--quantize", "fp8", "--group-size", "32"}, "--group-size has no effect without --quantize int8 or int4");
  refused({"--memory.placement", "lru"}, "--memory.placement has no effect without --memory.disk");
  refused({"--parallel.tensor.mode", "2d"}, "--parallel.tensor.mode has no effect with --parallel.tensor=1");
  refused({"--parallel.sequence.mode", "ulysses"}, "--parallel.sequence.mode has no effect with --parallel.sequence=1");
  refused({"--draft", folder / "hf", "--draft-tokens", "0"}, "--draft has no effect with --draft-tokens 0");
  // The same options are accepted if they have an effect, and so are values that turn options off.
  const std::vector<std::string> alike{"--prompt", "a", "--max-tokens", "1"};
  for (std::vector<std::string> words :
       {std::vector<std::string>{"--draft-tokens", "2", "--kv-cache", "1MiB", "--step-tokens", "7"},
        {"--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "0"},
        {"--temperature", "1", "--top-k", "4", "--seed", "3"},
        {"--parallel.tensor.mode", "1d"}}) {
    words.insert(words.end(), alike.begin(), alike.end());
    EXPECT_EQ(generate(words).status, 0) << words[0];
  }
  EXPECT_THAT(generate({"--prompts", folder.write("p.jsonl", "{\"prompt\": \"a\"}"), "--seed", "4"}).err,
              HasSubstr("--seed has no effect at temperature 0"));
  EXPECT_EQ(answers("{\"prompt\": \"a\", \"temperature\": 1}", {"--seed", "4", "--max-tokens", "1"}).size(), 1U);
  EXPECT_THAT(run_command("generate", {"--from", folder / "hf", "--prompt", "a", "--tokenizer", "none"}).err,
              HasSubstr("--tokenizer must be bytes, or a tokenizer's folder or file: got none"));
  EXPECT_THAT(run_command("bench", {"inference", "--from", folder / "hf", "--tokenizer", "bytes"}).err,
              HasSubstr("--tokenizer has no effect on a benchmark"));
}

TEST(GenerateT5, RefusesOptionsOfTheEngine) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "t5-tiny");
  const auto answer = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--from", folder / "hf", "--tokenizer", "bytes", "--prompt", "a", "--max-tokens", "2"});
    return run_command("generate", words);
  };
  EXPECT_EQ(answer({}).status, 0) << answer({}).err;
  const Outcome refused = answer({"--draft-tokens", "4", "--attention-sinks", "2", "--kv-cache-dtype", "int8"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("t5 does not use kv_cache_dtype, draft_tokens and attention_sinks: leave out "
                                     "--kv-cache-dtype, --draft-tokens and --attention-sinks"));
  EXPECT_THAT(answer({"--kv-cache", "1MiB"}).err, HasSubstr("--kv-cache has no effect on a single --prompt"));
}

TEST_F(Generate, ReadsTheSameOptionsFromLinesAndFlags) {
  const std::vector<std::string> words{
      "--max-tokens",         "9",   "--temperature", "1.5",  "--top-k", "9", "--min-p",    "0.01",
      "--repetition-penalty", "1.5", "--logit-bias",  "98=2", "--seed",  "5", "--logprobs", "1",
      "--attention-sinks",    "2",   "--stop",        "b"};
  const auto by_flag = answers("{\"prompt\": \"Hello\"}", words);
  const auto by_line = answers(
      "{\"prompt\": \"Hello\", \"max_tokens\": 9, \"temperature\": 1.5, \"top_k\": 9, \"min_p\": 0.01, "
      "\"repetition_penalty\": 1.5, \"logit_bias\": {\"98\": 2}, \"seed\": 5, \"logprobs\": 1, \"attention_sinks\": 2, "
      "\"stop\": \"b\"}");
  EXPECT_EQ(by_line, by_flag);
  EXPECT_GT(by_flag[0]["tokens"], 0);
}

TEST_F(Generate, ReadsPromptsFromAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "a\nb\n", 4), 4);
  close(ends[1]);
  const std::string path = "/proc/self/fd/" + std::to_string(ends[0]);
  const Outcome outcome = generate({"--prompts", path, "--max-tokens", "2"});
  close(ends[0]);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("\"prompt\":\"a\""), HasSubstr("\"prompt\":\"b\"")));
  ASSERT_EQ(pipe(ends), 0);
  const Outcome refused = generate({"--prompts", "/proc/self/fd/" + std::to_string(ends[0]), "--parallel.tensor", "2"});
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("must be a regular file if several ranks read it"));
}

TEST_F(Generate, ReadsDefaultsFromGenerationConfig) {
  const std::string file = folder / "hf/generation_config.json";
  const auto sampled = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--prompt", "Hello", "--max-tokens", "8"});
    const Outcome outcome = generate(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome;
  };
  std::filesystem::remove(file);
  const std::string greedy = sampled({}).out, drawn = sampled({"--temperature", "2", "--top-k", "50"}).out;
  EXPECT_NE(greedy, drawn);
  folder.write("hf/generation_config.json", R"({"do_sample": true, "temperature": 2.0, "num_beams": 4})");
  const Outcome defaults = sampled({});
  EXPECT_EQ(defaults.out, drawn);
  EXPECT_THAT(defaults.err, HasSubstr("sampling: temperature 2, top_k 50, seed 0"));
  EXPECT_THAT(defaults.err, HasSubstr("num_beams has no effect here (generation_config.json)"));
  EXPECT_EQ(sampled({"--temperature", "0"}).out, greedy);
  EXPECT_THAT(sampled({"--top-k", "7", "--seed", "2"}).err, HasSubstr("sampling: temperature 2, top_k 7, seed 2"));
  EXPECT_EQ(answers("{\"prompt\": \"Hello\"}", {"--max-tokens", "8"})[0]["text"], drawn.substr(5, drawn.size() - 6));
  folder.write("hf/generation_config.json", R"({"temperature": 2.0, "repetition_penalty": 1.5, "top_p": null})");
  EXPECT_THAT(sampled({}).err, HasSubstr("sampling: greedy, repetition_penalty 1.5"));
  folder.write("hf/generation_config.json", R"({"top_p": 1.5})");
  EXPECT_THAT(generate({"--prompt", "a"}).err,
              testing::AllOf(HasSubstr(file), HasSubstr("top_p must lie in (0, 1]: got")));
  folder.write("hf/generation_config.json", R"({"do_sample": "yes"})");
  EXPECT_THAT(generate({"--prompt", "a"}).err, HasSubstr("do_sample must be true or false: got"));
}

TEST_F(Generate, ReportsLogProbabilitiesOfThePrompt) {
  const auto told = answers(
      "{\"prompt\": \"Hello\", \"prompt_logprobs\": 2}\n{\"prompt\": \"Hello\", \"max_tokens\": 0, "
      "\"prompt_logprobs\": 0}\n{\"prompt\": \"Hello\"}",
      {"--max-tokens", "3"});
  EXPECT_FALSE(told[2].contains("prompt_logprobs"));
  const json& scores = told[0]["prompt_logprobs"];
  ASSERT_EQ(scores.size(), 5U);
  EXPECT_EQ(scores[0]["piece"], "H");
  EXPECT_TRUE(scores[0]["logprob"].is_null());
  double sum = 0;
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(scores[i]["piece"], std::string(1, "Hello"[i]));
    ASSERT_EQ(scores[i]["best"].size(), 2U);
    EXPECT_GE(scores[i]["best"][0]["logprob"].get<double>(), scores[i]["logprob"].get<double>());
    EXPECT_EQ(told[1]["prompt_logprobs"][i]["logprob"], scores[i]["logprob"]);
    sum -= scores[i]["logprob"].get<double>();
  }
  EXPECT_EQ(told[1]["tokens"], 0);
  EXPECT_EQ(told[1]["ended"], "length");
  const std::string text = folder.write("hello", "Hello");
  const Outcome judged =
      run_command("evaluate", {"--from", folder / "hf", "--tokenizer", "bytes", "--perplexity", text, "--json"});
  EXPECT_NEAR(json::parse(judged.out)["nll"].get<double>(), sum / 4, 1e-5);
  EXPECT_THAT(generate({"--prompt", "a", "--prompt-logprobs", "1"}).err, HasSubstr("need --prompts"));
  EXPECT_THAT(generate({"--prompts", folder / "prompts.jsonl", "--attention-sinks", "1"}).err,
              HasSubstr("exclude attention_sinks"));
}

TEST_F(Generate, AcceptsExtremeValues) {
  const Outcome plain = generate({"--prompt", "a", "--max-tokens", "40"});
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(generate({"--prompt", "a", "--max-tokens", "9223372036854775807"}).out, plain.out);
  const Outcome upper =
      generate({"--prompts", folder.write("UPPER.JSONL", "{\"prompt\": \"a\"}"), "--max-tokens", "1"});
  EXPECT_THAT(upper.out, HasSubstr("\"prompt\":\"a\""));
  const std::string line = "{\"prompt\": \"a\", \"temperature\": 1}\n";
  EXPECT_EQ(answers(line + line, {"--seed", "9223372036854775807", "--max-tokens", "1"}).size(), 2U);
  EXPECT_THAT(generate({"--prompt", "a", "--attention-sinks", "9223372036854775807"}).err,
              HasSubstr("less than half of the maximum length"));
  EXPECT_THAT(generate({"--prompt", ""}).err, HasSubstr("the prompt must have at least one token"));
  EXPECT_THAT(generate({}).err, HasSubstr("exactly one of --prompt and --prompts must be given"));
  EXPECT_THAT(generate({"--prompt", "\xff"}).err, HasSubstr("--prompt must be UTF-8"));
  EXPECT_THAT(generate({"--prompts", folder.path()}).err, HasSubstr("cannot read the file of prompts: "));
  // a prompt in the place of a file
  EXPECT_EQ(generate({"--prompts", std::string(5000, 'x')}).err,
            "colossal: [generate] cannot read the file of prompts: " + std::string(200, 'x') +
                "...; --prompts takes the path of a file, --prompt a text\n");
  const Outcome too_long = generate({"--prompt", std::string(5000, 'x')});
  EXPECT_THAT(too_long.err, HasSubstr("the prompt must fit the model's positions: got 5000 tokens"));
  EXPECT_EQ(too_long.out, "");
}

TEST_F(Generate, PrintsNoTextForIdsBeyondTheTokenizer) {
  // The model has more ids than the tokenizer: it always draws an id without text.
  std::filesystem::remove_all(folder / "run");
  std::filesystem::remove_all(folder / "hf");
  test::write_model(folder, "llama-tiny", 300);
  const auto told =
      answers("{\"prompt\": \"a\", \"logit_bias\": {\"299\": 1000}, \"logprobs\": 1}", {"--max-tokens", "2"});
  EXPECT_EQ(told[0]["text"], "");
  EXPECT_EQ(told[0]["tokens"], 2);
  EXPECT_EQ(told[0]["logprobs"][0]["id"], 299);
  EXPECT_EQ(told[0]["logprobs"][0]["piece"], "");
}

TEST_F(Generate, RequiresATokenizerOfTheDraftModel) {
  std::filesystem::copy(folder / "hf", folder / "own", std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder / "own/tokenizer.json");
  const Outcome refused =
      run_command("generate", {"--from", folder / "run", "--prompt", "a", "--draft", folder / "own"});
  EXPECT_EQ(refused.status, 1);
  test::TemporaryFolder t5;
  test::write_model(t5, "t5-tiny");
  const Outcome other = generate({"--prompt", "a", "--draft", t5 / "hf"});
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(
      other.err,
      HasSubstr("a draft model must continue text: got a t5, which generates a target text from a source text"));
  EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("the draft model must come with a tokenizer"),
                                          HasSubstr(folder / "own"), HasSubstr("--tokenizer")));
}

TEST_F(Generate, RefusesInvalidLines) {
  EXPECT_THAT(refusal("{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"temprature\": 1}"),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("unknown option temprature")));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"temperature\": \"hot\"}"), HasSubstr("must be a number: got \"hot\""));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"top_k\": 1.5}"), HasSubstr("must be a whole number: got 1.5"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"top_p\": 2}"), HasSubstr("top_p must lie in (0, 1]"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"stop\": [\"\"]}"),
              HasSubstr("a stop string must be UTF-8 text and not empty"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"logit_bias\": {\"x\": 1}}"), HasSubstr("by their ids: got x"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"logit_bias\": {\"999999\": 1}}"), HasSubstr("of the vocabulary of"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"max_tokens\": -1}"), HasSubstr("must not be negative"));
  EXPECT_THAT(refusal("{\"text\": \"a\"}"), HasSubstr("a string \"prompt\""));
  EXPECT_THAT(generate({"--prompt", "a", "--logit-bias", "x=1"}).err, HasSubstr("as 50256=-100: got x=1"));
  EXPECT_THAT(generate({"--prompt", "a", "--logit-bias", "7"}).err, HasSubstr("as 50256=-100: got 7"));
  EXPECT_THAT(generate({"--prompt", "a", "--min-p", "2"}).err, HasSubstr("min_p must lie in [0, 1]"));
}

}  // namespace
}  // namespace colossal::cli::generate_test
