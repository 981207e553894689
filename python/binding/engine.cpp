// The engine of this process and its requests. Python reads parts of answers without the GIL.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/serve/local_engine.h"
#include "parts.h"
#include "text.h"

namespace colossal::binding {
namespace {

using serve::AnswerPart;
using serve::LocalEngine;
using serve::LocalRequest;

/// Returns the name of a finish reason, as `colossal generate` prints it; None while the answer goes on.
py::object finish_name(infer::FinishReason reason) {
  switch (reason) {
    case infer::FinishReason::None:
      return py::none();
    case infer::FinishReason::AtEnd:
      return py::str("end");
    case infer::FinishReason::AtLength:
      return py::str("length");
    case infer::FinishReason::AtPositions:
      return py::str("positions");
    case infer::FinishReason::AtStop:
      return py::str("stop");
    case infer::FinishReason::Cancelled:
      return py::str("cancelled");
    case infer::FinishReason::Failed:
    case infer::FinishReason::EngineEnded:
      break;
  }
  return py::str("error");
}

/// (text, ids, log-probabilities as [(own, [(id, value)])], why the answer ended or None)
py::tuple next_part(LocalRequest& request, double seconds) {
  AnswerPart part;
  {
    const py::gil_scoped_release released;
    part = request.next(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  }
  py::list scores;
  for (const infer::LogProbabilities& score : part.log_probabilities)
    scores.append(py::make_tuple(score.own, py::cast(score.best)));
  return py::make_tuple(part.text, part.ids, scores, finish_name(part.finish_reason));
}

/// Log-probabilities of the tokens of a given answer; None before the request has ended.
std::optional<std::vector<double>> next_scores(LocalRequest& request, double seconds) {
  const py::gil_scoped_release released;
  const AnswerPart part = request.next(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  if (!part.is_last()) return {};
  require(part.finish_reason == infer::FinishReason::AtLength, "engine",
          "an answer was not scored, because the engine was closed or the request cancelled");
  std::vector<double> own;
  for (const infer::LogProbabilities& score : part.prompt_log_probabilities) own.push_back(score.own);
  return own;
}

/// Requests for the scores of (ids of a prompt, ids of an answer), in order.
std::vector<Held<LocalRequest>> score(LocalEngine& engine,
                                      std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> pairs,
                                      const std::string& adapter) {
  std::vector<infer::GivenAnswer> given;
  for (auto& [prompt, answer] : pairs) given.push_back({std::move(prompt), std::move(answer)});
  std::vector<Held<LocalRequest>> requests;
  for (auto& request : engine.score(given, adapter)) requests.emplace_back(request.release());
  return requests;
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<LocalRequest, Held<LocalRequest>>(module, "Request")
      .def("next", &next_part, py::arg("seconds"))
      .def("next_scores", &next_scores, py::arg("seconds"))
      .def("descriptor", &LocalRequest::descriptor)
      .def("cancel", &LocalRequest::cancel, WithoutGil());
  py::class_<LocalEngine, Held<LocalEngine>>(module, "Engine")
      .def(py::init([](const std::string& json) {
             return std::make_unique<LocalEngine>(serve::read_local_engine_options(json)).release();
           }),
           py::arg("options"), WithoutGil())
      .def(
          "submit",
          [](LocalEngine& engine, std::vector<int64_t> prompt, const std::string& json, int64_t index,
             const std::string& adapter) {
            infer::GenerationOptions options = engine.options(json);
            options.sampling.seed += index;
            return Held<LocalRequest>(engine.submit(std::move(prompt), std::move(options), adapter).release());
          },
          py::arg("prompt"), py::arg("options"), py::arg("index"), py::arg("adapter"), WithoutGil())
      .def("score", &score, py::arg("pairs"), py::arg("adapter"), WithoutGil())
      .def("prompt_ids", &LocalEngine::prompt_ids, py::arg("text"), WithoutGil())
      .def(
          "answer_ids",
          [](const LocalEngine& engine, const std::string& prompt, const std::string& answer) {
            infer::GivenAnswer ids = engine.answer_ids(prompt, answer);
            return std::pair(std::move(ids.prompt), std::move(ids.answer));
          },
          py::arg("prompt"), py::arg("answer"), WithoutGil())
      .def("chat_template", &LocalEngine::chat_template, py::arg("adapter"), WithoutGil())
      .def("close", &LocalEngine::close, WithoutGil())
      .def("tokenizer",
           [](const LocalEngine& engine) -> std::unique_ptr<Tokenizer> {
             return engine.tokenizer() ? std::make_unique<Tokenizer>(engine.tokenizer()) : nullptr;
           })
      .def("max_length", &LocalEngine::max_length)
      .def("notices", &LocalEngine::notices);
}

}  // namespace colossal::binding
