#include "colossal/serve/refused_fields.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

struct RefusedField {
  const char* name;
  const char* neutral;  // list of the values that change nothing, as JSON; null always changes nothing
  const char* remedy;
  unsigned objects = kCompletions | kChats;
};

constexpr const char* kLeaveOut = "leave it out";
constexpr const char* kUseFormat = "use response_format";
constexpr const char* kUseFilters = "use temperature, top_p, top_k or min_p";
constexpr const char* kUsePenalties = "use repetition_penalty, presence_penalty or frequency_penalty";
constexpr const char* kFromNoise = "pictures begin from noise here; use `colossal draw`";
constexpr const char* kOwnSampler = "the folder names its sampler; use `colossal draw`";
constexpr unsigned kGenerations = kCompletions | kChats, kTemplates = kChats | kTokenization;

constexpr RefusedField kFields[] = {
    // Fields of other routes
    {"messages", "[]", "use /v1/chat/completions", kCompletions},
    {"messages", "[]", "use input", kEmbeddings},
    {"prompt", "[]", "use messages", kChats},
    {"tools", "[[]]", "use /v1/chat/completions", kCompletions},
    {"tool_choice", R"(["none", "auto"])", "use /v1/chat/completions", kCompletions},
    {"chat_template_kwargs", "[{}]", "use /v1/chat/completions", kCompletions},
    {"reasoning_effort", "[]", "use /v1/chat/completions", kCompletions},
    {"top_logprobs", "[0]", "use logprobs", kCompletions},
    // OpenAI
    {"suffix", R"([""])", "text cannot be inserted before a suffix; leave it out", kCompletions},
    {"modalities", R"([["text"]])", "answers are text; leave it out", kChats},
    {"audio", "[]", "answers are text; leave it out", kChats | kMessages},
    {"functions", "[[]]", "use tools", kChats},
    {"function_call", "[]", "use tool_calls", kMessages},
    {"prefix", "[false]", "use /v1/completions", kMessages},
    {"function_call", R"(["none"])", "use tool_choice", kChats},
    {"web_search_options", "[]", "this server searches nothing; leave it out", kChats},
    {"verbosity", R"(["medium"])", "ask for it in a message", kChats},
    {"dimensions", "[]", "vectors keep their length; leave it out", kEmbeddings},
    // OpenAI: pictures
    {"quality", R"(["auto", "standard"])", "use num_inference_steps", kImages},
    {"style", "[]", "name it in the prompt", kImages},
    {"background", R"(["auto", "opaque"])", kLeaveOut, kImages},
    {"output_format", R"(["png"])", "pictures are PNG files; leave it out", kImages},
    {"output_compression", "[100]", kLeaveOut, kImages},
    {"partial_images", "[0]", kLeaveOut, kImages},
    {"stream", "[false]", "pictures come in one answer; leave it out", kImages},
    // stable-diffusion.cpp, AUTOMATIC1111 and vLLM: pictures
    {"image", "[]", kFromNoise, kImages},
    {"init_images", "[[]]", kFromNoise, kImages},
    {"mask", "[]", kFromNoise, kImages},
    {"strength", "[1]", kFromNoise, kImages},
    {"control_strength", "[1]", "the server weighs its ControlNet: start it with --control FOLDER:SCALE", kImages},
    {"width", "[]", "use size", kImages},
    {"height", "[]", "use size", kImages},
    {"steps", "[]", "use num_inference_steps", kImages},
    {"sample_steps", "[]", "use num_inference_steps", kImages},
    {"cfg_scale", "[]", "use guidance_scale", kImages},
    {"batch_count", "[1]", "use n", kImages},
    {"num_images_per_prompt", "[1]", "use n", kImages},
    {"sampler_name", "[]", kOwnSampler, kImages},
    {"sample_method", "[]", kOwnSampler, kImages},
    {"scheduler", "[]", kOwnSampler, kImages},
    {"clip_skip", "[0, -1]", "use `colossal draw`", kImages},
    // vLLM: the prompt
    {"prompt_embeds", "[]", "use prompt", kCompletions},
    {"add_special_tokens", "[true]", "use a list of token ids as the prompt", kCompletions},
    {"add_special_tokens", "[true]", "use a list of token ids as the input", kEmbeddings},
    {"add_special_tokens", "[false]", "the chat template writes them; leave it out", kChats},
    {"truncate_prompt_tokens", "[]", "shorten the text", kGenerations | kEmbeddings},
    {"chat_template", "[]", "start the server with --chat-template", kTemplates},
    {"add_generation_prompt", "[true]", "use /v1/completions", kTemplates},
    {"continue_final_message", "[false]", "use /v1/completions", kTemplates},
    {"documents", "[[]]", "put them into a message", kTemplates},
    {"echo", "[false]", "use /v1/completions", kChats},
    {"enable_thinking", "[]", "use chat_template_kwargs", kTemplates},
    {"cache_salt", "[]", "give each client a key, which has prefixes of its own"},
    // vLLM: the choice of tokens
    {"use_beam_search", "[false]", kLeaveOut},
    {"watermarking", "[false]", kLeaveOut},
    {"min_tokens", "[0]", kLeaveOut},
    {"stop_token_ids", "[[]]", "use stop, which may spell special tokens"},
    {"allowed_token_ids", "[[]]", "use logit_bias"},
    {"bad_words", "[[]]", "use logit_bias"},
    {"logits_processors", "[[]]", kLeaveOut},
    {"repetition_detection", "[]", kLeaveOut},
    {"thinking_token_budget", "[-1]", "use max_tokens"},
    {"structured_outputs", "[]", kUseFormat},
    {"guided_json", "[]", kUseFormat},
    {"guided_regex", "[]", "use response_format with a pattern"},
    {"guided_choice", "[]", "use response_format with an enum"},
    {"guided_grammar", R"([""])", kUseFormat},
    {"kv_transfer_params", "[]", kLeaveOut},
    {"ec_transfer_params", "[]", kLeaveOut},
    {"vllm_xargs", "[{}]", kLeaveOut},
    // vLLM: the shape of the answer
    {"include_stop_str_in_output", "[false]", "add the stop string to the answer"},
    {"skip_special_tokens", "[true]", "use logprobs, which show special tokens"},
    {"prompt_logprobs", "[]", "use echo and logprobs of /v1/completions"},
    {"logprob_token_ids", "[]", "use top_logprobs"},
    {"return_tokens_as_token_ids", "[false]", "use /tokenize"},
    {"return_token_ids", "[false]", "use /tokenize"},
    {"return_prompt_text", "[false]", "use /tokenize and /detokenize"},
    {"return_token_strs", "[false]", "use /detokenize", kTokenization},
    {"continuous_usage_stats", "[false]", "use include_usage", kStreamOptions},
    {"include_reasoning", "[true]", "thoughts stay in content; leave it out", kChats},
    {"normalize", "[]", "start the server with --normalize", kEmbeddings},
    {"use_activation", "[]", "start the server with --normalize", kEmbeddings},
    {"embed_dtype", R"(["float32"])", kLeaveOut, kEmbeddings},
    {"endianness", R"(["native", "little"])", kLeaveOut, kEmbeddings},
    // llama.cpp: the choice of tokens
    {"n_predict", "[-1]", "use max_tokens"},
    {"n_cmpl", "[1]", "use n"},
    {"n_indent", "[0]", kLeaveOut},
    {"t_max_predict_ms", "[0, -1]", "use max_tokens"},
    {"samplers", "[[]]", "filters have a fixed order; leave it out"},
    {"min_keep", "[0]", kLeaveOut},
    {"top_n_sigma", "[0, -1]", kUseFilters},
    {"typical_p", "[1]", kUseFilters},
    {"tfs_z", "[1]", kUseFilters},
    {"xtc_probability", "[0]", kUseFilters},
    {"dynatemp_range", "[0]", kUseFilters},
    {"mirostat", "[0]", kUseFilters},
    {"adaptive_target", "[-1]", kUseFilters},
    {"repeat_penalty", "[1]", kUsePenalties},
    {"dry_multiplier", "[0]", kUsePenalties},
    {"json_schema", "[]", kUseFormat},
    {"grammar", R"([""])", kUseFormat},
    {"grammar_lazy", "[false]", kUseFormat},
    {"grammar_triggers", "[[]]", kUseFormat},
    {"lora", "[[]]", kLeaveOut, kImages},
    {"lora", "[[]]", "name the adapter in model, and give it to the server with --adapter"},
    {"image_data", "[[]]", "prompts are text; leave it out"},
    {"reasoning_budget_tokens", "[-1]", "use max_tokens", kChats},
    {"thinking_budget_tokens", "[-1]", "use max_tokens", kChats},
    // llama.cpp: the shape of the answer
    {"n_probs", "[0]", "use logprobs"},
    {"post_sampling_probs", "[false]", "use logprobs"},
    {"return_tokens", "[false]", "use /tokenize"},
    {"response_fields", "[[]]", kLeaveOut},
    {"reasoning_format", R"(["none", "auto"])", "thoughts stay in content; leave it out", kChats},
    {"parse_tool_calls", "[true]", "use tool_choice \"none\"", kChats},
    {"embd_normalize", "[]", "start the server with --normalize", kEmbeddings},
};

[[noreturn]] void refuse_field(const std::string& name, const std::string& remedy) {
  throw http::RequestError(400, concat(name, " is not supported: ", remedy), name, "unsupported_parameter");
}

bool is_neutral(const ordered_json& value, const char* neutral) {
  const ordered_json values = parse_ordered_json(neutral, "the values that change nothing", "serve");
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

void refuse_fields(const BodyFields& fields, FieldsOf object) {
  for (const RefusedField& field : kFields) {
    if ((field.objects & object) == 0) continue;
    const ordered_json* value = fields.find(field.name);
    if (value && !is_neutral(*value, field.neutral)) refuse_field(fields.path_of(field.name), field.remedy);
  }
}

void refuse_penalty_window(const BodyFields& fields, const infer::SamplingOptions& sampling) {
  const bool has_penalty =
      sampling.presence_penalty != 0 || sampling.frequency_penalty != 0 || sampling.repetition_penalty != 1;
  const ordered_json* window = fields.find("repeat_last_n");
  if (window && has_penalty && *window != -1)
    refuse_field("repeat_last_n", "penalties count the whole text; leave it out, or send -1");
}

std::vector<std::string> refused_field_names() {
  std::vector<std::string> names{"repeat_last_n"};
  for (const RefusedField& field : kFields) names.emplace_back(field.name);
  return names;
}

}  // namespace colossal::serve
