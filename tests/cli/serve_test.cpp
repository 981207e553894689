// Command lines that `colossal serve` refuses, before any rank starts. tests/dist/serve_test.cpp has servers that run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/outcome.h"
#include "colossal/cli/serve_options.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"

namespace colossal::cli::serve_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Serve : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    test::write_model(*folder_, "llama-tiny");
    folder_->write("bert/config.json", R"({"model_type": "bert", "vocab_size": 64, "hidden_size": 16,
      "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32})");
    folder_->write("vit/config.json", R"({"model_type": "vit", "image_size": 32, "patch_size": 4, "hidden_size": 16,
      "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 10})");
    folder_->write("t5/config.json", R"({"model_type": "t5", "vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32,
      "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu"})");
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }

  static void expect_refusal(std::vector<std::string> words, int status, const std::string& message,
                             const std::string& model = "hf") {
    words.insert(words.end(), {"--from", folder() / model, "--tokenizer", "bytes"});
    const Outcome outcome = run_command("serve", words);
    EXPECT_EQ(outcome.status, status) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
  }
  static ServeOptions options(std::vector<std::string> words, const std::string& model = "hf") {
    words.insert(words.end(), {"--from", folder() / model, "--tokenizer", "bytes"});
    return read_serve_options(words, run::built_in());
  }

 private:
  static inline test::TemporaryFolder* folder_ = nullptr;
};

TEST_F(Serve, NeedsKeysBeyondThisMachine) {
  for (const char* host : {"0.0.0.0", "192.168.1.4", "::"})
    expect_refusal({"--host", host}, 1,
                   std::string("[serve] --host must be a loopback address without --api-key-file: got ") + host +
                       ", which other machines may reach; give --api-key-file, or leave out --host");
  const std::string keys = folder().write("keys", "# clients\n\na-key-of-ann\n");
  EXPECT_EQ(options({"--host", "0.0.0.0", "--api-key-file", keys}).keys.number_of("a-key-of-ann"), 1);
  expect_refusal({"--host", "0.0.0.0", "--api-key-file", keys, "--allow-host", "models.example"}, 2,
                 "--allow-host has no effect with a --host that is not a loopback address");
}

TEST_F(Serve, RefusesKeyFilesWithoutPrintingKeys) {
  expect_refusal({"--api-key-file", folder() / "absent"}, 1,
                 "there is no " + folder() / "absent" + "; `openssl rand -hex 16` makes a key");
  expect_refusal({"--api-key-file", folder().write("empty", "\n# none\n")}, 1,
                 "a key file must have at least one key: got none in");
  const std::string short_keys = folder().write("short", "long-enough\nsecret7\n");
  expect_refusal({"--api-key-file", short_keys}, 1,
                 "a key must have at least 8 characters: got 7 in line 2 of " + short_keys);
  const Outcome outcome = run_command("serve", {"--from", folder() / "hf", "--api-key-file", short_keys});
  EXPECT_THAT(outcome.err, Not(HasSubstr("secret7")));
}

TEST_F(Serve, RefusesModelsWithoutTextBeforeTheirWeightsAreRead) {
  expect_refusal({}, 1, "which classifies images; name another one with --from", "vit");
  expect_refusal({}, 1,
                 "which generates a target text from a source text; name another one with --from, or use `colossal "
                 "generate`",
                 "t5");
  expect_refusal({}, 1, "there is no file or folder", "absent");
}

TEST_F(Serve, TakesModelsThatDraw) {
  folder().write("sd/model_index.json", "{}");
  EXPECT_FALSE(options({}).draws);
  const auto drawing = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--from", folder() / "sd"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const ServeOptions own =
      read_serve_options(drawing({"--parallel.data", "2", "--replicas", "3", "--max-waiting", "3"}), run::built_in());
  EXPECT_TRUE(own.draws);
  EXPECT_EQ(own.name, "sd");
  EXPECT_EQ(own.ranks(), 6);
  EXPECT_EQ(own.printed_ranks(), "3 replicas of 2 ranks");
  EXPECT_EQ(own.limits.max_waiting, 3);
  const auto refusal = [&](const std::vector<std::string>& more) { return run_command("serve", drawing(more)).err; };
  EXPECT_THAT(refusal({"--kv-cache", "1MiB", "--temperature", "0"}),
              HasSubstr("--kv-cache and --temperature have no effect on a model that draws pictures"));
  EXPECT_THAT(refusal({"--adapter", "a=" + folder() / "poet", "--adapter", "b=" + folder() / "poet"}),
              HasSubstr("a model must continue text if requests choose adapters"));
  expect_refusal({"--parallel.data", "2"}, 2, "--parallel.data has no effect on a model that reads text");
}

TEST_F(Serve, RefusesOptionsWithoutEffect) {
  expect_refusal({"--port", "65536"}, 2, "--port");
  expect_refusal({"--replicas", "0"}, 2, "--replicas");
  expect_refusal({"--max-header", "1"}, 2, "--max-header: must be 1KiB to 1MiB: got 1");
  expect_refusal({"--max-header", "much"}, 2, "--max-header: must be a size in bytes");
  expect_refusal({"--max-bodies", "1MiB"}, 1, "max_bodies must be at least max_body");
  expect_refusal({"--system", "Rhyme"}, 2, "--system has no effect on a model without a chat template");
  expect_refusal({"--variables", "[]", "--chat-template", folder().write("t.jinja", "")}, 1,
                 "--variables must be a JSON object: got []");
  expect_refusal({"--pooling", "pooler"}, 1, "--pooling pooler needs a BERT");
  expect_refusal({"--group-size", "64"}, 2, "--group-size has no effect");
  expect_refusal({"--quantize", "int8", "--max-tokens", "3"}, 2,
                 "--quantize and --max-tokens have no effect on a model that only embeds texts", "bert");
  expect_refusal({"--parallel.sequence", "2"}, 1, "needs ranks that hold whole hidden states", "bert");
}

TEST_F(Serve, ReadsDefaultsOfRequests) {
  const ServeOptions plain = options({});
  EXPECT_EQ(plain.name, "hf");
  EXPECT_FALSE(plain.demands_name);
  EXPECT_EQ(plain.defaults.options.sampling.temperature, 1);
  EXPECT_FALSE(plain.defaults.max_tokens || plain.defaults.has_seed);
  const ServeOptions given =
      options({"--name",         "tiny",  "--max-tokens",    "5",
               "--temperature",  "0",     "--seed",          "3",
               "--stop",         "x",     "--variables",     R"({"a": 1})",
               "--system",       "Rhyme", "--chat-template", folder().write("t.jinja", "{{ a }}"),
               "--max-body",     "1KiB",  "--max-n",         "2",
               "--idle-timeout", "0.5",   "--step-tokens",   "300",
               "--normalize"});
  EXPECT_EQ(given.name, "tiny");
  EXPECT_TRUE(given.demands_name && given.defaults.has_seed && given.chat_template && given.embedding.normalize);
  EXPECT_EQ(given.defaults.max_tokens, 5);
  EXPECT_EQ(given.defaults.options.sampling.temperature, 0);
  EXPECT_EQ(given.defaults.options.sampling.seed, 3);
  EXPECT_THAT(given.defaults.options.stop, ElementsAre("x"));
  EXPECT_EQ(given.defaults.system, "Rhyme");
  EXPECT_EQ(given.defaults.variables, nlohmann::ordered_json({{"a", 1}}));
  EXPECT_EQ(given.limits.max_body, 1024);
  EXPECT_EQ(given.limits.max_n, 2);
  EXPECT_EQ(given.limits.idle_timeout, 0.5);
  EXPECT_EQ(given.embedding.tokens_at_once, 300);
}

TEST_F(Serve, ReadsAdaptersThatRequestsChoose) {
  folder().write("poet/chat_template.jinja", "{{ 1 }}");
  const ServeOptions own =
      options({"--adapter", "poet=" + folder() / "poet" + ":0.5", "--adapter", folder() / "coder"});
  EXPECT_EQ(own.name, "hf");
  EXPECT_TRUE(own.demands_name);
  ASSERT_EQ(own.adapters.size(), 2U);
  EXPECT_EQ(own.adapters[0].choice.name, "poet");
  EXPECT_TRUE(own.adapters[0].chat_template.has_value());
  EXPECT_EQ(own.adapters[1].choice.name, "coder");
  EXPECT_FALSE(own.adapters[1].chat_template.has_value());
  const run::Loading loading = own.model.loading();
  EXPECT_FALSE(loading.adapter.has_value());
  ASSERT_EQ(loading.named_adapters.size(), 2U);
  EXPECT_EQ(loading.named_adapters[0].folder, folder() / "poet");
  EXPECT_EQ(loading.named_adapters[0].scale, 0.5);
  EXPECT_EQ(loading.named_adapters[1].name, "coder");
  EXPECT_EQ(options({"--adapter", "poet=" + folder() / "poet"}).adapters.size(), 1U) << "one with a name";
  const std::string file = folder().write("t.jinja", "");
  EXPECT_FALSE(options({"--adapter", "poet=" + folder() / "poet", "--chat-template", file})
                   .adapters[0]
                   .chat_template.has_value());
}

TEST_F(Serve, PutsOneAdapterWithoutANameOntoTheModel) {
  folder().write("poet/chat_template.jinja", "{{ 1 }}");
  const ServeOptions own = options({"--adapter", folder() / "poet"});
  EXPECT_TRUE(own.adapters.empty());
  ASSERT_TRUE(own.chat_template.has_value());
  EXPECT_EQ(own.chat_template->source(), "{{ 1 }}");
  EXPECT_FALSE(own.demands_name);
  const run::Loading loading = own.model.loading();
  EXPECT_TRUE(loading.named_adapters.empty());
  ASSERT_TRUE(loading.adapter.has_value());
  EXPECT_EQ(loading.adapter->folder, folder() / "poet");
}

TEST_F(Serve, GivesTemplatesOfAdaptersTheSpecialTokensOfTheModel) {
  folder().write("spoken/config.json", test::read_all(folder() / "hf/config.json"));
  folder().write("spoken/tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "base"})");
  folder().write("singer/chat_template.jinja", "{{ bos_token }}la");
  const std::string named = "singer=" + folder() / "singer";
  const ServeOptions own = options({"--adapter", named, "--adapter", folder() / "coder"}, "spoken");
  ASSERT_TRUE(own.adapters[0].chat_template && own.chat_template);
  EXPECT_EQ(own.adapters[0].chat_template->render({}).text, "<s>la");
  EXPECT_EQ(own.chat_template->render({}).text, "base");
  EXPECT_EQ(options({"--adapter", folder() / "singer"}, "spoken").chat_template->render({}).text, "<s>la");
  folder().write("singer/tokenizer_config.json", R"({"bos_token": "<b>"})");
  EXPECT_EQ(options({"--adapter", named}, "spoken").adapters[0].chat_template->render({}).text, "<b>la");
}

TEST_F(Serve, RefusesAdaptersThatRequestsCannotChoose) {
  expect_refusal({"--adapter", "poet=a", "--adapter", "b/poet"}, 1,
                 "[adapter] the names of adapters must differ: got poet twice");
  expect_refusal({"--adapter", "hf=a"}, 1, "[adapter] the name of an adapter must not be that of the model: got hf");
  expect_refusal({"--name", "tiny", "--adapter", "tiny=a"}, 1, "must not be that of the model: got tiny");
  expect_refusal({"--adapter", "a poet=a"}, 1, "must have letters, digits and -_.:@+ alone: got a poet");
  expect_refusal({"--adapter", "=a"}, 1, "got an empty name in =a");
  expect_refusal({"--adapter", "poet=a"}, 1, "[serve] a model must continue text if requests choose adapters", "bert");
}

TEST_F(Serve, TakesDefaultsFromTheModelsFolder) {
  folder().write("own/config.json", test::read_all(folder() / "hf/config.json"));
  folder().write("own/generation_config.json", R"({"temperature": 0.25, "top_k": 9, "max_new_tokens": 7})");
  const ServeOptions own = options({"--top-k", "3"}, "own");
  EXPECT_EQ(own.defaults.options.sampling.temperature, 0.25);
  EXPECT_EQ(own.defaults.options.sampling.top_k, 3);
  EXPECT_EQ(own.defaults.max_tokens, 7);
}

}  // namespace
}  // namespace colossal::cli::serve_test
