#include "colossal/cli/serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <utility>
#include <variant>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/cli/chat_options.h"
#include "colossal/cli/generation_flags.h"
#include "colossal/cli/text_lines.h"
#include "colossal/http/routes.h"
#include "colossal/infer/embeddings/sentence_folder.h"

namespace colossal::cli {
namespace {

/// Values of the command line that read_serve_options() converts.
struct ServeFlags {
  infer::GenerationOptions generation;
  ChatOptions chat;
  std::string key_file, pooling;
  bool normalize = false;
};

const std::vector<std::string>& unused_in_serve() {
  static const std::vector<std::string> names{"logprobs", "prompt_logprobs"};  // each request asks for them itself
  return names;
}

/// Adds a flag for each limit of a server.
class LimitFlagAdder : public Fields {
 public:
  explicit LimitFlagAdder(CLI::App& app) : app_(app) {}

 private:
  void visit(const Field& field) override {
    const std::string flag = infer::flag_of(field.name);
    if (double* const* number = std::get_if<double*>(&field.value)) {
      app_.add_option(flag, **number, field.help)->capture_default_str()->check(CLI::Range(field.low, field.high));
    } else if (int64_t* const* integer = std::get_if<int64_t*>(&field.value)) {
      field.is_bytes ? add_bytes(flag, field, **integer) : add_integer(flag, field, **integer);
    }
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}

  void add_integer(const std::string& flag, const Field& field, int64_t& value) {
    CLI::Option* option = app_.add_option(flag, value, field.help)->capture_default_str();
    if (field.max == kMaxInteger)
      option->check(CLI::PositiveNumber);
    else
      option->check(CLI::Range(field.min, field.max));
  }
  void add_bytes(const std::string& flag, const Field& field, int64_t& value) {
    const auto read = [flag, &value, min = field.min, max = field.max](const std::string& text) {
      const std::optional<int64_t> size = parse_bytes(text);
      if (!size) throw CLI::ValidationError(flag, concat("must be ", kSizeRule, ": got ", text));
      if (*size < min || *size > max)
        throw CLI::ValidationError(flag,
                                   concat("must be ", print_bytes(min), " to ", print_bytes(max), ": got ", text));
      value = *size;
    };
    app_.add_option_function<std::string>(flag, read, field.help)->default_str(print_bytes(value));
  }

  CLI::App& app_;
};

void add_defaults_of_requests(CLI::App& app, ServeFlags& flags) {
  add_chat_options(app, flags.chat, "system message of chats that have none");
  add_generation_flags(
      app, flags.generation,
      {.left_out = unused_in_serve(),
       .max_tokens_help = "maximum number of new tokens of a request that sets none; default: that of "
                          "generation_config.json, else 16 for completions and as many as fit for chats",
       .min_tokens = 1});
  app.get_option("--max-tokens")->default_str("");
  app.get_option("--temperature")->default_str("1");
  app.get_option("--seed")->default_str("random");
}

void add_address(CLI::App& app, ServeOptions& options, ServeFlags& flags) {
  app.add_option("--host", options.host, "address to listen at: an IP address, or localhost")->capture_default_str();
  app.add_option("--port", options.port, "port to listen at; 0 = any free port, which the ready line shows")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--api-key-file", flags.key_file,
                 "file with one key of at least 8 characters per line; clients send `Authorization: Bearer KEY`; "
                 "default: no key is needed");
  app.add_option("--name", options.name,
                 "name of the model; a request for another model gets 404; default: the name of the folder or file is "
                 "shown, and every name is accepted, unless requests choose adapters");
  app.add_option("--parallel.data", options.model.layout.data,
                 "of a model that draws: number of ranks, or groups of them, that divide the pictures of a request")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--replicas", options.replicas, "number of models behind the port, each with all ranks of the layout")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--allow-host", options.allowed_hosts,
                 "further name that the `Host` header may have on a loopback address, as behind a reverse proxy; "
                 "repeatable");
  app.add_option("--drain", options.drain, "seconds that running requests get after SIGTERM or SIGINT")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--pooling", flags.pooling,
                 "method of /v1/embeddings that combines the token states into one vector; default: the folder's, or "
                 "mean")
      ->check(CLI::IsMember(infer::pooling_names()));
  app.add_flag("--normalize", flags.normalize, "scale vectors of /v1/embeddings to length 1");
}

void check_address(const CLI::App& app, const ServeOptions& options, const ServeFlags& flags) {
  if (!http::is_loopback(options.host)) {
    require(!flags.key_file.empty(), "serve", "--host must be a loopback address without --api-key-file: got ",
            options.host, ", which other machines may reach; give --api-key-file, or leave out --host");
    refuse_options(app, {"--allow-host"}, "with a --host that is not a loopback address: every `Host` is accepted");
  }
  options.limits.check();
}

/// Reads how texts become vectors, and replaces a folder of sentence-transformers by the model's folder in it.
void read_embedding(const ServeFlags& flags, ServeOptions& options) {
  const infer::SentenceFolder folder = infer::read_sentence_folder(options.model.from);
  options.model.from = folder.model;
  options.embedding_tokens = folder.tokens.value_or(0);
  if (!folder.prompt_name.empty()) {
    const auto prompt = folder.prompts.find(folder.prompt_name);
    require(prompt != folder.prompts.end(), "serve", "the default prompt of ", options.name,
            " must be one of its prompts: got ", folder.prompt_name, "; see config_sentence_transformers.json");
    options.embedding_prompt = prompt->second;
  }
  options.embedding = {.pooling = !flags.pooling.empty() ? infer::pooling_of(flags.pooling)
                                                         : folder.pooling.value_or(infer::Pooling::Mean),
                       .normalize = flags.normalize || folder.normalize,
                       .tokens_at_once = options.engine.step_tokens};
}

/// Refuses options without effect on a model that only embeds.
void check_embedding_model(const CLI::App& app, const ServeOptions& options) {
  std::vector<std::string> names{"--kv-cache", "--kv-cache-dtype", "--draft-tokens", "--draft",
                                 "--quantize", "--chat-template",  "--variables",    "--system"};
  for (const std::string& name : given_names(app)) names.push_back(infer::flag_of(name));
  refuse_options(app, names, "on a model that only embeds texts");
  const distributed::ParallelConfig& layout = options.model.layout;
  require(layout.sequence.size == 1 && (layout.tensor.size == 1 || layout.tensor.mode == "1d"), "serve",
          "a model that only embeds needs ranks that hold whole hidden states: got --parallel.sequence ",
          layout.sequence.size, " and --parallel.tensor.mode ", layout.tensor.mode,
          "; leave them out, or use --replicas");
}

/// Refuses options without effect on a model that draws.
void check_picture_model(const CLI::App& app, const ServeOptions& options) {
  std::vector<std::string> names{"--kv-cache",      "--kv-cache-dtype", "--step-tokens", "--draft-tokens",
                                 "--draft",         "--tokenizer",      "--model",       "--pooling",
                                 "--chat-template", "--variables",      "--system",      "--normalize"};
  for (const std::string& name : given_names(app)) names.push_back(infer::flag_of(name));
  refuse_options(app, names, "on a model that draws pictures");
  require(options.adapters.empty(), "serve",
          "a model must continue text if requests choose adapters: got one that draws pictures in ", options.model.from,
          "; start a server for each adapter, with --adapter FOLDER");
}

constexpr char kServedAdapterHelp[] =
    "[NAME=]FOLDER[:SCALE]: adapters for the model, from a folder of peft or a run, which a request chooses by NAME as "
    "its `model`; repeatable; default NAME: the last name of the folder. One without NAME alone is put onto the model. "
    "SCALE multiplies their change";

/// Finds the adapters that requests choose. A single adapter without a name is put onto the model.
void read_adapters(ServeOptions& options) {
  const std::vector<std::string>& texts = options.model.adapters;
  if (texts.empty() || (texts.size() == 1 && !run::parse_adapter(texts[0]).has_name)) return;
  options.model.name_beside_adapters = options.name;
  options.demands_name = true;
  for (run::AdapterChoice& choice : run::parse_adapters(texts, options.name))
    options.adapters.push_back({std::move(choice)});
}

/// Reads the chat templates of the model and of the adapters that have one of their own.
void read_templates(const std::string& file, ServeOptions& options) {
  options.chat_template = options.model.chat_template(file);
  if (!file.empty()) return;
  for (SelectableAdapter& adapter : options.adapters)
    if (text::has_chat_template(adapter.choice.folder))
      adapter.chat_template = options.model.chat_template("", adapter.choice.name);
}

void check_task(const CLI::App& app, const ServeOptions& options) {
  const models::Task& task = options.task;
  require(!task.scores(), "serve", "the model must continue or embed text: got ", options.model.from, ", which ",
          task.purpose(), "; `colossal score` prints its scores");
  require(task.continues() || (task.reads_text() && !task.answers()), "serve",
          "the model must continue or embed text: got ", options.model.from, ", which ", task.purpose(),
          "; name another one with --from", task.answers() ? ", or use `colossal generate`" : "");
  require(task.continues() || options.adapters.empty(), "serve",
          "a model must continue text if requests choose adapters: got ", options.model.from, ", which ",
          task.purpose(), "; start a server for each adapter, with --adapter FOLDER");
  if (!task.continues()) return check_embedding_model(app, options);
  require(options.embedding.pooling != infer::Pooling::Pooler, "serve",
          "--pooling pooler needs a BERT: got a model that continues text; use cls, mean, max or last");
  const bool has_template = options.chat_template || std::any_of(options.adapters.begin(), options.adapters.end(),
                                                                 [](const SelectableAdapter& adapter) {
                                                                   return adapter.chat_template.has_value();
                                                                 });
  if (!has_template)
    refuse_options(app, {"--system", "--variables"},
                   "on a model without a chat template; name one with --chat-template");
}

std::string last_part(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

std::string ServeOptions::printed_ranks() const {
  const int64_t each = model.layout.ranks();
  const std::string of = replicas > 1 ? concat(replicas, " replicas of ") : "";
  return concat(of, each, each == 1 ? " rank" : " ranks");
}

ServeOptions read_serve_options(const Arguments& arguments, const run::Program& program) {
  CLI::App app(
      "Serves a model over HTTP, with the routes of OpenAI's API and a chat page. Sampling options, --max-tokens, "
      "--system, --variables and --json-schema are defaults of requests that leave the field out. The model's "
      "generation_config.json has precedence over the defaults shown here.",
      "colossal serve");
  ServeOptions options;
  ServeFlags flags;
  add_model_options(app, options.model);
  app.get_option("--from")->description(
      "run folder, Hugging Face folder (config.json and safetensors), folder of sentence-transformers, pipeline of "
      "diffusers or GGUF file");
  app.get_option("--adapter")->description(kServedAdapterHelp);
  add_engine_options(app, options.model, options.engine);
  add_part_options(app, options.other);
  add_defaults_of_requests(app, flags);
  add_address(app, options, flags);
  LimitFlagAdder limits(app);
  options.limits.fields(limits);
  parse(app, arguments);
  check_address(app, options, flags);
  if (!flags.key_file.empty()) {
    require(std::filesystem::exists(flags.key_file), "serve",
            "--api-key-file must be a file with one key per line: ", "there is no ", flags.key_file,
            "; `openssl rand -hex 16` makes a key");
    if (options.ranks() > 1) require_regular_file(flags.key_file, "serve", "several ranks read it");
    options.keys = http::read_keys(flags.key_file);
  }
  options.demands_name = !options.name.empty();
  if (options.name.empty()) options.name = last_part(options.model.from);
  read_adapters(options);
  flags.generation.check();
  check_text_model_options(app, options.model, "serve");
  options.draws = diffusion::draws_pictures(options.model.from, program);
  if (options.draws) {
    check_picture_model(app, options);
    return options;
  }
  refuse_options(app, {"--parallel.data"}, "on a model that reads text; use --replicas");
  refuse_options(app, {"--vae", "--text-encoder", "--control", "--ip", "--embedding"},
                 "on a model that draws no pictures");
  read_embedding(flags, options);
  options.task = run::task_of(options.model.from, program, options.model.model);
  read_templates(flags.chat.template_file, options);
  check_task(app, options);
  options.defaults =
      serve::request_defaults(flags.generation, given_names(app), serve::read_folder_options(options.model.from));
  options.defaults.system = flags.chat.system;
  options.defaults.variables = template_variables(flags.chat, "serve");
  return options;
}

}  // namespace colossal::cli
