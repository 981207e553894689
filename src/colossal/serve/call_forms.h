// The forms in which models write calls of functions. docs/how-to/serving.md lists the models of each.
#pragma once
#include <string_view>

namespace colossal::serve {

/// A written form of calls. After `opening` comes JSON, one or several objects or a list, or one of these: a name,
/// `separator` and the arguments as a JSON object; tags (kTagSyntaxes); literals. Each form is a row of kCallForms.
struct CallForm {
  std::string_view opening;      ///< "" = the answer begins with the call
  std::string_view closing{};    ///< "" = none
  std::string_view separator{};  ///< "" = no name can come first
  bool has_tags = false;         ///< tags may follow, up to `closing`
  bool has_literals = false;     ///< a call with literals as arguments follows, up to `closing`
  bool opens_tag = false;        ///< `opening` and `closing` are those of a tag of kTagSyntaxes
};

inline constexpr CallForm kCallForms[] = {
    {.opening = "<tool_call>", .closing = "</tool_call>", .has_tags = true},
    {.opening = "<tool_calls>", .closing = "</tool_calls>"},
    {.opening = "<TOOLCALL>", .closing = "</TOOLCALL>"},
    {.opening = "<|tools_prefix|>", .closing = "<|tools_suffix|>"},
    {.opening = "[TOOL_CALLS]", .separator = "[ARGS]"},
    {.opening = "<|tool_call|>"},
    {.opening = "<|function_call|>"},
    {.opening = "<|python_tag|>"},
    {.opening = "functools"},
    {.opening = "<\uff5ctool\u2581call\u2581begin\uff5c>",
     .closing = "<\uff5ctool\u2581call\u2581end\uff5c>",
     .separator = "<\uff5ctool\u2581sep\uff5c>"},
    {.opening = "<|tool_call_begin|>", .closing = "<|tool_call_end|>", .separator = "<|tool_call_argument_begin|>"},
    {.opening = "<|tool_call:begin|>", .closing = "<|tool_call:end|>", .separator = "<|tool_call:args|>"},
    {.opening = "to=functions.", .separator = "<|message|>"},
    {.opening = "<seed:tool_call>", .closing = "</seed:tool_call>", .has_tags = true},
    {.opening = "<minimax:tool_call>", .closing = "</minimax:tool_call>", .has_tags = true},
    {.opening = "<\uff5cDSML\uff5cfunction_calls>", .closing = "</\uff5cDSML\uff5cfunction_calls>", .has_tags = true},
    {.opening = "<\uff5cDSML\uff5ctool_calls>", .closing = "</\uff5cDSML\uff5ctool_calls>", .has_tags = true},
    {.opening = "<atem:function_calls>", .closing = "</atem:function_calls>", .has_tags = true},
    {.opening = "<tool_calls:opensource>", .closing = "</tool_calls:opensource>", .has_tags = true},
    {.opening = "<|open|>tools<|sep|>", .closing = "<|close|>tools<|sep|>", .has_tags = true},
    {.opening = "<|tool_call_start|>", .closing = "<|tool_call_end|>", .has_literals = true},
    {.opening = "<|tool_call>", .closing = "<tool_call|>", .has_literals = true},
    {.opening = "<function=", .closing = "</function>", .separator = ">", .has_tags = true, .opens_tag = true},
    {.opening = "<function name=\"", .closing = "</function>", .has_tags = true, .opens_tag = true},
};
inline constexpr CallForm kBareForm{};  ///< Llama 3, forced_call_schema()

/// Marks that some models write before the opening of a call, and after its end. They are no content.
inline constexpr std::string_view kBeforeCalls[] = {"<\uff5ctool\u2581calls\u2581begin\uff5c>",
                                                    "<|tool_calls_section_begin|>", "<|tool_calls|>",
                                                    "<|start|>assistant", "<|channel|>commentary"};
inline constexpr std::string_view kAfterCalls[] = {"<\uff5ctool\u2581calls\u2581end\uff5c>",
                                                   "<|tool_calls_section_end|>", "<|calls|>", "<|call|>"};

/// A call as tags: call NAME name_end ... open_end {key NAME key_end ... value TEXT value_end} call_end.
/// The text before open_end and value has attributes. "" = absent.
struct TagSyntax {
  std::string_view call, name_end, open_end, call_end, key, key_end, value, value_end;
};

inline constexpr TagSyntax kTagSyntaxes[] = {
    {"<function=", ">", "", "</function>", "<parameter=", ">", "", "</parameter>"},
    {"<invoke name=\"", "\"", ">", "</invoke>", "<parameter name=\"", "\"", ">", "</parameter>"},
    {"<\uff5cDSML\uff5cinvoke name=\"", "\"", ">", "</\uff5cDSML\uff5cinvoke>", "<\uff5cDSML\uff5cparameter name=\"",
     "\"", ">", "</\uff5cDSML\uff5cparameter>"},
    {"<atem:invoke name=\"", "\"", ">", "</atem:invoke>", "<atem:parameter name=\"", "\"", ">", "</atem:parameter>"},
    {"<function name=\"", "\"", ">", "</function>", "<param name=\"", "\"", ">", "</param>"},
    {"<|open|>call tool=\"", "\"", "<|sep|>", "<|close|>call<|sep|>", "<|open|>argument key=\"", "\"", "<|sep|>",
     "<|close|>argument<|sep|>"},
    {"<tool_call:opensource>", "<tool_sep:opensource>", "", "</tool_call:opensource>", "<arg_key:opensource>",
     "</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>"},
    {"", "", "", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},  // the name comes first
};

/// Further special tokens within calls.
inline constexpr std::string_view kMarksWithinCalls[] = {"[CALL_ID]", "<|\"|>", "<|tool_call:name|>", "<|constrain|>"};

}  // namespace colossal::serve
