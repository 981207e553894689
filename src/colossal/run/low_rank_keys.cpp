#include "colossal/run/low_rank_keys.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/run/module_names.h"

namespace colossal::run {
namespace {

/// Returns the value of the first element that names the module.
std::optional<double> value_of(const char* key, const std::vector<std::string>& elements, const std::string& module) {
  for (const std::string& element : elements) {
    const size_t at = element.rfind('=');
    const std::string value = at == std::string::npos ? "" : element.substr(at + 1);
    double number = -1;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_whole = read.ec == std::errc() && read.ptr == value.data() + value.size();
    require(at != std::string::npos && at > 0 && is_whole && number >= 0, "adapter", "adapter.", key,
            " must have elements NAME=VALUE: got ", element, "; write \"q_proj=8\"");
    if (names_module(element.substr(0, at), module)) return number;
  }
  return std::nullopt;
}

}  // namespace

void LowRankKeys::fields(Fields& f) {
  f.choice("kind", kind, {"none", "lora", "dora", "controlnet", "textual-inversion", "ip-adapter"},
           "adapters of linear layers: none, low-rank (LoRA), or low-rank with trained magnitudes (DoRA); of a UNet: "
           "controlnet, which learns to follow the pictures x.control.png beside x.png, "
           "textual-inversion, which learns words, or ip-adapter, which learns to draw what resembles a picture");
  f.integer("rank", rank, "",
            "rows of A and columns of B: x W^T + s (x A^T) B^T. Of textual-inversion: vectors of each word; default 1",
            1, 1 << 16);
  f.number("alpha", alpha, "", "s = alpha / rank, or as `scale` says", 0);
  f.choice("scale", scale, {"plain", "root"}, "s = alpha / rank, or alpha / sqrt(rank) (rsLoRA)");
  f.number("dropout", dropout, "", "probability with which an element of x is dropped on its way to A", 0, 0.999);
  f.texts(
      "targets", targets,
      "modules of the Hugging Face folder that have adapters: names (q_proj), names with a path, patterns with `*`, "
      "all-linear (every linear layer inside the blocks, without experts) or experts (every expert); default of models "
      "that draw: the projections of attention (to_q, to_k, to_v, to_out.0 in folders of diffusers), of their text "
      "encoder q_proj, k_proj, v_proj, out_proj. Of textual-inversion: the words that are learned, each with the word "
      "it "
      "starts from: \"<cat>=cat\"");
  f.flag("text_encoder", text_encoder,
         "models of captions: `targets` are also those of the text encoder, whose states are then not stored; needs "
         "model.from = a pipeline");
  f.texts("ranks", ranks, "ranks of modules that have another one: NAME=RANK, where NAME is as in `targets`");
  f.texts("alphas", alphas, "alphas of modules that have another one: NAME=ALPHA");
  f.texts("trained", trained, "modules that are trained whole and saved with the adapters, such as lm_head");
  f.text("from", from,
         "folder of peft, or run, whose adapters are trained further. It gives all keys above but dropout. Of a "
         "ControlNet: "
         "its folder or run; empty = a copy of the model's first half. Of an IP-adapter: its folder, file or run, or "
         "for a new one its encoder of pictures: a folder of CLIPVisionModelWithProjection, or clip-vision-tiny");
  f.choice("base", base, {"model", "bf16", "int8", "nf4"},
           "format of the frozen matrices of linear layers inside the blocks while the run trains: the model's dtype, "
           "bf16, 8 bits with a scale per output, or NF4 (QLoRA)");
  f.flag("double", double_quantized, "NF4: quantize the block maxima to 8 bits, too");
}

int64_t LowRankKeys::rank_of(const std::string& module) const {
  const std::optional<double> own = value_of("ranks", ranks, module);
  require(!own || (*own >= 1 && *own == std::floor(*own) && *own <= 1 << 16), "adapter",
          "adapter.ranks must have whole numbers of at least 1: got ", own.value_or(0), " for ", module);
  return own ? static_cast<int64_t>(*own) : rank;
}

double LowRankKeys::alpha_of(const std::string& module) const {
  return value_of("alphas", alphas, module).value_or(alpha);
}

double LowRankKeys::factor_of(const std::string& module) const {
  const auto of = static_cast<double>(rank_of(module));
  return alpha_of(module) / (scale == "root" ? std::sqrt(of) : of);
}

}  // namespace colossal::run
