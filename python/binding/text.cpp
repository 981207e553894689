// Tokenizers and chat templates. Chats pass as JSON text.
#include "text.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/base/json_file.h"
#include "colossal/data/chats/chat_encoder.h"
#include "colossal/data/chats/chat_line.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "parts.h"

namespace colossal::binding {
namespace {

std::vector<std::vector<int64_t>> encode_all(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return text::encode_all(*tokenizer.held, views, threads);
}

/// Returns the ids and the labels of a chat, a JSON text.
std::pair<std::vector<int64_t>, std::vector<int64_t>> encode_chat(const text::ChatTemplate& own,
                                                                  const Tokenizer& tokenizer, const std::string& chat,
                                                                  const std::string& answers,
                                                                  const std::vector<int64_t>& end_ids) {
  const data::ChatEncoder encoder(tokenizer.held, own,
                                  {.answers = data::answers_of(answers, "answers"), .end_ids = end_ids});
  const auto record = parse_ordered_json(chat, "a chat", "data");
  data::LabelledTokens tokens = std::move(encoder.encode(data::chat_line_of(record, "a chat")).texts.at(0));
  return {std::move(tokens.ids), std::move(tokens.labels)};
}

void bind_tokenizer(py::module_& module) {
  using Text = const std::string&;
  py::class_<Tokenizer>(module, "Tokenizer")
      .def(py::init([](const std::string& name) { return std::make_unique<Tokenizer>(text::make_tokenizer(name)); }),
           py::arg("name"), WithoutGil())
      .def(
          "encode", [](const Tokenizer& t, Text text) { return t.held->encode(text); }, py::arg("text"), WithoutGil())
      .def(
          "encode_prompt", [](const Tokenizer& t, Text text) { return t.held->encode_prompt(text); }, py::arg("text"),
          WithoutGil())
      .def(
          "encode_whole", [](const Tokenizer& t, Text text) { return t.held->encode_whole(text).ids; }, py::arg("text"),
          WithoutGil())
      .def("encode_all", &encode_all, py::arg("texts"), WithoutGil())
      .def(
          "decode",
          [](const Tokenizer& t, const std::vector<int64_t>& ids, bool with_special) {
            return text::valid_utf8(t.held->decode(ids, with_special));
          },
          py::arg("ids"), py::arg("with_special"), WithoutGil())
      .def(
          "piece", [](const Tokenizer& t, int64_t id) { return py::bytes(t.held->piece(id)); }, py::arg("id"))
      .def(
          "spelling", [](const Tokenizer& t, int64_t id) { return text::valid_utf8(t.held->spelling(id)); },
          py::arg("id"))
      .def("vocabulary_size", [](const Tokenizer& t) { return t.held->vocabulary_size(); })
      .def("begin_id", [](const Tokenizer& t) { return t.held->begin_id(); })
      .def("end_id", [](const Tokenizer& t) { return t.held->end_id(); })
      .def("mask_id", [](const Tokenizer& t) { return t.held->mask_id(); });
}

}  // namespace

void bind_text(py::module_& module) {
  bind_tokenizer(module);
  py::class_<text::ChatTemplate>(module, "ChatTemplate")
      .def(py::init([](const std::string& folder) { return text::ChatTemplate::read(folder); }), py::arg("folder"),
           WithoutGil())
      .def(
          "render",
          [](const text::ChatTemplate& own, const std::string& chat, const std::string& name) {
            text::Chat read = text::parse_chat(chat);
            read.template_name = name;
            return own.render(read).text;
          },
          py::arg("chat"), py::arg("name"), WithoutGil())
      .def("encode", &encode_chat, py::arg("tokenizer"), py::arg("chat"), py::arg("answers"), py::arg("end_ids"),
           WithoutGil())
      .def("names", &text::ChatTemplate::names);
  module.def("has_chat_template", &text::has_chat_template, py::arg("folder"), WithoutGil());
}

}  // namespace colossal::binding
