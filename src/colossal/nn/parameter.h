// Parameters of a model: leaves of autograd with a name, a place in the mesh and a rule for weight decay.
//
//   nn::Parameters parameters(place, {.treatment = [](const std::string& name) {
//     return nn::Treatment{.trains = name != "embedding.weight"};                    // frozen, but saved
//   }});
//   const auto rows = tensor::ShardSpec::split({64, 16}, 0, {"tensor"});             // divided over the axis "tensor"
//   nn::Parameter& weight = parameters.add("embedding.weight", rows, nn::Init::normal(0.02), /*decay=*/true);
//   nn::Buffer& bias = parameters.buffer("blocks.0.router.bias", tensor::ShardSpec::whole({4}), at::kFloat);   // zeros
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/deferred_gradients.h"
#include "colossal/tensor/place.h"
#include "colossal/tensor/shard_spec.h"

namespace colossal::nn {

class Parameters;
class Product;

/// How initial values are drawn. They depend on (seed, name, logical index) alone, so every layout starts from the same
/// model.
struct Init {
  enum class Kind { Zeros, Ones, Normal } kind = Kind::Zeros;
  double deviation = 0;  ///< of Normal
  static Init zeros() { return {Kind::Zeros, 0}; }
  static Init ones() { return {Kind::Ones, 0}; }
  static Init normal(double deviation) { return {Kind::Normal, deviation}; }
};

/// What a run does with a parameter.
struct Treatment {
  /// False: the parameter is frozen. It has no gradient, master weight or optimizer state, and nothing is reduced
  bool trains = true;
  /// False: checkpoints leave it out. Its value is read from model.from again, or drawn from the seed again
  bool saved = true;
};

struct Parameter {
  std::string name;  ///< dotted path, the same under every layout: "blocks.3.attention.qkv.weight"; of a model with a
                     ///< name behind that name: "reference.blocks.3.attention.qkv.weight"
  /// This rank's part, spec.local_shape(place); padding holds zeros and keeps them through training. Undefined:
  /// elsewhere
  at::Tensor value;
  tensor::ShardSpec spec;
  double decay = 1;  ///< factor of optimizer.weight_decay: 0 for norms and biases
  Init init{};
  double rate = 1;  ///< factor of the learning rate
  /// Maps features to features: the weight of a linear layer or the kernel of a convolution inside the model; no table,
  /// no head, no vector. Rules for matrices (optim/muon) treat these alone. Of somebody else's module (adopt()) it is a
  /// guess, which takes a head for such a matrix, too
  bool hidden_matrix = false;
  /// Rows of it are read by index: the table of an embedding, which a tied head multiplies with, too
  bool looked_up = false;
  /// Several blocks use it. Where these are computed again in backward, a part of its gradient comes from each
  bool is_shared = false;
  Treatment treatment{};  ///< known on every rank, also where `value` is undefined
  /// A wrapper of a product declared it (Parameters::Options::products), such as a matrix of an adapter. Folders of
  /// other programs do not have it
  bool is_added = false;
  std::string model{};  ///< name of its model (Parameters::Options::model)

  /// Its name within its model.
  std::string own_name() const { return model.empty() ? name : name.substr(model.size() + 1); }
  /// Its name in a checkpoint. What begins with "model." is of the model without a name.
  std::string saved_name() const { return model.empty() ? "model." + name : name; }
};

/// What a buffer belongs to.
enum class BufferUse : uint8_t {
  Model,     ///< the model: it is saved, imported and exported with the parameters
  Training,  ///< training: it is saved beside the parameters, and inference does not read it
};

/// A tensor of a model with a dtype of its own. It has no gradient and no optimizer updates it: layers write its value
/// in place. ZeRO and tiers leave it where it is. Of the members of Parameter it uses name, model, value and spec.
struct Buffer : Parameter {
  BufferUse use = BufferUse::Model;
  /// Its name in a checkpoint.
  std::string saved_name() const { return use == BufferUse::Model ? Parameter::saved_name() : name; }
};

/// A tensor of that shape which has no memory: of a value that is elsewhere, or not yet there.
at::Tensor without_memory(at::IntArrayRef shape, const at::TensorOptions& options);

/// The parameters of one rank, in order of creation, of one model or of several (begin_model()). Addresses stay valid
/// as more are added.
///
/// In a pipeline every rank declares the whole models, and holds the parameters that its stages use: iteration sees
/// these alone.
class Parameters {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    uint64_t seed = 0;
    /// The name of the model. The names of its parameters and buffers begin with it and a dot; "": they are the given
    /// ones. The functions below are asked by names without it, and a value is drawn as in a model without a name.
    std::string model{};
    /// ShardSpec::stages of the parameter of a name; null: no pipeline.
    std::function<std::vector<int>(const std::string& name)> stages{};
    /// Returns the treatment of the parameter of a name; null: all are trained and saved. Asked on every rank for every
    /// parameter of the model when it is declared, so all ranks must return the same.
    std::function<Treatment(const std::string& name)> treatment{};
    /// Values have their shape alone, no memory, until someone gives them some (memory::ChunkStore) and draws into it.
    /// A model then never exists whole on a rank that keeps a share of it.
    bool without_memory = false;
    /// Returns what multiplies in the linear layer of `weight`: a wrapper of `product`, or `product` itself. It may
    /// declare parameters and buffers of its own in `parameters`. Called on every rank for every weight of layers
    /// inside blocks (hidden matrices) and of the logits of language models, in the order in which layers are made.
    /// weight.value is undefined if another stage of a pipeline has it; nothing is multiplied with it then.
    using ProductOf = std::function<std::shared_ptr<const Product>(std::shared_ptr<const Product> product,
                                                                   const Parameter& weight, Parameters& parameters)>;
    /// The first wraps the product of the layout, each other one the result of the one before it.
    std::vector<ProductOf> products{};
    /// Of tensors on meta: whose steps they show, in what depends on the device and not on numbers alone (how much of
    /// the logits a head makes at a time)
    at::DeviceType shown = at::kCPU;
  };
  Parameters(tensor::Place place, Options options) : place_(std::move(place)), options_(std::move(options)) {}

  /// What is declared from here on belongs to another model. Stages, treatment and products are those of `options`, and
  /// options() returns these from here on.
  /// Errors ("model"): a name that another model has; another dtype, device or seed than that of the models before.
  void begin_model(Options options);

  /// Declares a parameter and makes its local part, where it has one. `name`: within the model; wrappers of products
  /// (Options::products) may give it with the name of the model, as it follows from weight.name. Errors: a name that is
  /// taken.
  Parameter& add(const std::string& name, tensor::ShardSpec spec, Init init, bool decay);
  /// Declares a buffer and makes its local part, zeros of `dtype`, if this rank holds it. Redeclaration: as of add().
  /// Errors: a name that is taken.
  Buffer& buffer(const std::string& name, tensor::ShardSpec spec, at::ScalarType dtype,
                 BufferUse use = BufferUse::Model);
  /// While it lives add() gives the parameters that are there: for a second set of layers over them, of a layout that
  /// stores them alike. Errors of add(): a name that is not there, a spec of another shape or that splits it otherwise.
  class Redeclaration {
   public:
    explicit Redeclaration(Parameters& parameters) : parameters_(parameters) { parameters_.redeclares_ = true; }
    ~Redeclaration() { parameters_.redeclares_ = false; }
    Redeclaration(const Redeclaration&) = delete;
    Redeclaration& operator=(const Redeclaration&) = delete;

   private:
    Parameters& parameters_;
  };
  /// Declares a leaf of somebody else's module, whole on every rank, with its values; once, however often it is given
  /// (a tied weight). Its dtype may be another than the options': a chunk store gives it that one. Errors: a name that
  /// is taken, a tensor that is no leaf. One of two dimensions or more is taken for a hidden matrix: who knows that it
  /// is a table or a head sets Parameter::hidden_matrix back.
  void adopt(const std::string& name, const at::Tensor& leaf, bool decay);
  /// The initial values of a parameter that this rank holds, to `out`, of its local shape and any dtype. They follow
  /// from own_name(), so models of one shape begin alike.
  void draw(const Parameter& parameter, const at::Tensor& out) const;
  /// `name`: with that of the model. Errors: no such name.
  Parameter& at(const std::string& name);
  const tensor::Place& place() const { return place_; }
  const Options& options() const { return options_; }
  /// `product`, or what options().products make of it.
  std::shared_ptr<const Product> product_for(const Parameter& weight, std::shared_ptr<const Product> product);
  /// A weight of this rank whose product works without gradients only (Product::has_backward); empty: there is none.
  const std::string& forward_only() const { return forward_only_; }
  /// Where the linear layers of this model leave products that can wait.
  DeferredGradients& deferred() { return deferred_; }

  /// Iterates over the parameters that this rank holds.
  auto begin() { return Held<Parameter>{here_.begin()}; }
  auto end() { return Held<Parameter>{here_.end()}; }
  auto begin() const { return Held<const Parameter>{here_.begin()}; }
  auto end() const { return Held<const Parameter>{here_.end()}; }
  size_t size() const { return here_.size(); }
  /// The parameters of the whole models.
  const std::deque<Parameter>& declared() const { return list_; }
  /// The buffers of the whole models. value is undefined if another stage has it.
  std::deque<Buffer>& buffers() { return buffers_; }
  const std::deque<Buffer>& buffers() const { return buffers_; }
  /// Logical elements: the size of the models, whatever the layout.
  int64_t numel() const;
  /// Logical elements of the parameters that are trained, of all stages.
  int64_t trained_numel() const;

 private:
  template <class T>
  struct Held {
    std::vector<Parameter*>::const_iterator at;
    T& operator*() const { return **at; }
    Held& operator++() {
      ++at;
      return *this;
    }
    bool operator==(const Held&) const = default;
  };

  /// The name of a parameter or buffer that is declared as `name`.
  std::string full_name(const std::string& name) const;
  void require_new(const std::string& name) const;
  /// Sets the stages of a tensor that has its name, and returns true if this rank holds it.
  bool find_stages(Parameter& tensor) const;

  tensor::Place place_;
  Options options_;
  std::vector<std::string> models_before_;   // names of the models before this one
  bool redeclares_ = false, wraps_ = false;  // wraps_: inside product_for()
  std::string forward_only_;
  DeferredGradients deferred_;
  std::deque<Parameter> list_;
  std::deque<Buffer> buffers_;
  std::vector<Parameter*> here_;
};

}  // namespace colossal::nn
