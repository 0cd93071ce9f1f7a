// Whether tensors, dicts and classes still are what they were, in one call.
//
// The same questions in Python wait for memory one after the other: between two calls of a model its weights' records are
// in no cache, and each question runs code of torch that is in no cache either. Here all that is needed is fetched first.

#include <Python.h>

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/version.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#if PY_VERSION_HEX >= 0x030C0000
#include <unordered_map>
#endif

namespace {

// A strong reference that counts as one of its owner's: the owner's `traverse` visits it.
using Object = pybind11::object;

Object held(PyObject* given) { return pybind11::reinterpret_borrow<Object>(given); }

Object taken(PyObject* made) {
  if (made == nullptr) throw python_error();
  return pybind11::reinterpret_steal<Object>(made);
}

void fetch(const void* address) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address);
#else
  (void)address;
#endif
}

class Tensor {
 public:
  Tensor(PyObject* given, bool may_be_written) : object_(held(given)), counted_(!may_be_written) {
    TORCH_CHECK_TYPE(
        THPVariable_Check(given), "tensors and written must hold tensors, not ", Py_TYPE(given)->tp_name);
    impl_ = THPVariable_Unpack(given).unsafeGetTensorImpl();
    TORCH_CHECK_VALUE(impl_->has_storage(), "a tensor without a storage has nothing to compare");
    kind_ = Py_TYPE(given);
    storage_ = impl_->unsafe_storage();
    data_ = storage_.data();
    offset_ = impl_->storage_offset();
    sizes_ = impl_->sizes().vec();
    strides_ = impl_->strides().vec();
    keys_ = impl_->key_set();
    dtype_ = impl_->dtype();
    device_ = impl_->device();
    counted_ = counted_ && !impl_->is_inference();  // inference tensors count no writes
    version_ = version();
  }

  PyObject* object() const { return object_.ptr(); }

  void fetch_impl() const {
    const char* start = reinterpret_cast<const char*>(impl_);
    for (size_t line = 0; line < sizeof(c10::TensorImpl); line += 64) fetch(start + line);
    fetch(object_.ptr());
    fetch(storage_.unsafeGetStorageImpl());
  }

  bool same() const {
    return Py_TYPE(object_.ptr()) == kind_ && impl() == impl_ &&
        impl_->unsafe_storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl() &&
        storage_.data() == data_ && impl_->storage_offset() == offset_ &&
        impl_->sizes() == c10::IntArrayRef(sizes_) && impl_->strides() == c10::IntArrayRef(strides_) &&
        impl_->key_set() == keys_ && impl_->dtype() == dtype_ && impl_->device() == device_ &&
        version() == version_;
  }

 private:
  c10::TensorImpl* impl() const { return THPVariable_Unpack(object_.ptr()).unsafeGetTensorImpl(); }

  uint32_t version() const { return counted_ ? impl_->version_counter().current_version() : 0; }

  Object object_;
  bool counted_;
  c10::TensorImpl* impl_;
  PyTypeObject* kind_;
  c10::Storage storage_;  // held, or another one could take its address
  const void* data_;
  int64_t offset_;
  std::vector<int64_t> sizes_, strides_;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_{c10::kCPU};
  uint32_t version_;
};

Object dict_of(PyObject* given) {
  TORCH_CHECK_TYPE(PyDict_Check(given), "dicts and empty must hold dicts, not ", Py_TYPE(given)->tp_name);
  return held(given);
}

#if PY_VERSION_HEX < 0x030C0000

// CPython numbers the states of its dicts (PEP 509).
class Dicts {
 public:
  void add(Object dict) {
    const uint64_t number = number_of(dict.ptr());
    held_.emplace_back(std::move(dict), number);
  }

  void fetch_all() const {
    for (const auto& [dict, _] : held_) fetch(&reinterpret_cast<PyDictObject*>(dict.ptr())->ma_version_tag);
  }

  bool same() const {
    for (const auto& [dict, number] : held_) {
      if (number_of(dict.ptr()) != number) return false;
    }
    return true;
  }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& [dict, _] : held_) Py_VISIT(dict.ptr());
    return 0;
  }

 private:
  static uint64_t number_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }

  std::vector<std::pair<Object, uint64_t>> held_;
};

#else

// From 3.12 on CPython tells of a change before it happens; a changed dict need not even be looked at.
class Dicts {
 public:
  ~Dicts() {
    for (const auto& dict : held_) {
      auto& told = watchers()[dict.ptr()];
      told.erase(std::remove(told.begin(), told.end(), this), told.end());
      if (!told.empty()) continue;
      watchers().erase(dict.ptr());
      if (PyDict_Unwatch(id_, dict.ptr()) != 0) PyErr_Clear();
    }
  }

  void add(Object dict) {
    if (id_ < 0 && (id_ = PyDict_AddWatcher(changed)) < 0) throw python_error();
    if (PyDict_Watch(id_, dict.ptr()) != 0) throw python_error();
    watchers()[dict.ptr()].push_back(this);
    held_.push_back(std::move(dict));
  }

  void fetch_all() const {}

  bool same() const { return !moved_; }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& dict : held_) Py_VISIT(dict.ptr());
    return 0;
  }

 private:
  static std::unordered_map<PyObject*, std::vector<Dicts*>>& watchers() {
    static auto* all = new std::unordered_map<PyObject*, std::vector<Dicts*>>;  // never freed: modules outlive statics
    return *all;
  }

  static int changed(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
    const auto found = watchers().find(dict);
    if (found == watchers().end()) return 0;
    for (Dicts* each : found->second) each->moved_ = true;
    return 0;
  }

  static inline int id_ = -1;
  std::vector<Object> held_;
  bool moved_ = false;
};

#endif

// What a class calls `forward`, by identity.
struct Forward {
  Object kind, function;

  static Object of(const Object& kind) {
    static PyObject* const name = PyUnicode_InternFromString("forward");
    return taken(PyObject_GetAttr(kind.ptr(), name));
  }

  bool same() const { return of(kind).is(function); }
};

struct State {
  std::vector<Tensor> tensors;
  Dicts dicts;
  std::vector<Object> empty;
  std::vector<Forward> forwards;

  bool same() const {
    dicts.fetch_all();
    for (const auto& dict : empty) fetch(dict.ptr());
    for (const auto& forward : forwards) fetch(forward.kind.ptr());
    for (const auto& tensor : tensors) tensor.fetch_impl();
    if (!dicts.same()) return false;
    for (const auto& dict : empty) {
      if (PyDict_GET_SIZE(dict.ptr()) != 0) return false;
    }
    for (const auto& tensor : tensors) {
      if (!tensor.same()) return false;
    }
    for (const auto& forward : forwards) {
      if (!forward.same()) return false;
    }
    return true;
  }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& tensor : tensors) Py_VISIT(tensor.object());
    for (const auto& dict : empty) Py_VISIT(dict.ptr());
    for (const auto& forward : forwards) {
      Py_VISIT(forward.kind.ptr());
      Py_VISIT(forward.function.ptr());
    }
    return dicts.traverse(visit, arg);
  }
};

struct Snapshot {
  PyObject_HEAD
  State* state;  // null once the garbage collector has cleared it
};

template <class Take>
void each_of(PyObject* sequence, Take take) {
  const Object items = taken(PySequence_Fast(sequence, "a snapshot is made of sequences"));
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(items.ptr()); index++) {
    take(PySequence_Fast_GET_ITEM(items.ptr(), index));
  }
}

PyObject* snapshot_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"tensors", "written", "dicts", "empty", "classes", nullptr};
  PyObject *tensors, *written, *dicts, *empty, *classes;
  if (!PyArg_ParseTupleAndKeywords(
          args, kwargs, "OOOOO", const_cast<char**>(names), &tensors, &written, &dicts, &empty, &classes)) {
    return nullptr;
  }
  auto state = std::make_unique<State>();
  each_of(tensors, [&](PyObject* given) { state->tensors.emplace_back(given, false); });
  each_of(written, [&](PyObject* given) { state->tensors.emplace_back(given, true); });
  each_of(dicts, [&](PyObject* given) { state->dicts.add(dict_of(given)); });
  each_of(empty, [&](PyObject* given) { state->empty.push_back(dict_of(given)); });
  each_of(classes, [&](PyObject* given) { state->forwards.push_back({held(given), Forward::of(held(given))}); });
  auto* self = reinterpret_cast<Snapshot*>(type->tp_alloc(type, 0));
  if (self != nullptr) self->state = state.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyObject* snapshot_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  if (PyTuple_GET_SIZE(args) != 0 || (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a snapshot takes no arguments");
    return nullptr;
  }
  const State* state = reinterpret_cast<Snapshot*>(self)->state;
  return PyBool_FromLong(state != nullptr && state->same());
  END_HANDLE_TH_ERRORS
}

int snapshot_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const State* state = reinterpret_cast<Snapshot*>(self)->state;
  return state == nullptr ? 0 : state->traverse(visit, arg);
}

int snapshot_clear(PyObject* self) {
  delete std::exchange(reinterpret_cast<Snapshot*>(self)->state, nullptr);
  return 0;
}

void snapshot_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  snapshot_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

const char* const DOC =
    "Snapshot(tensors, written, dicts, empty, classes): what these are now; called, whether they still are that.\n\n"
    "Tensors by class, storage, address, sizes, strides, dtype, device and version, those in `written` without their\n"
    "version; dicts by whether anything else was written to them; `empty` by whether they are empty; classes by the\n"
    "identity of their `forward`. All are held.";

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(DOC)},
    {Py_tp_new, reinterpret_cast<void*>(snapshot_new)},
    {Py_tp_call, reinterpret_cast<void*>(snapshot_call)},
    {Py_tp_traverse, reinterpret_cast<void*>(snapshot_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(snapshot_clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(snapshot_dealloc)},
    {0, nullptr},
};

PyType_Spec spec = {
    "tt_native.Snapshot", sizeof(Snapshot), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_snapshot", nullptr, -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__snapshot() {
  HANDLE_TH_ERRORS
  Object module = taken(PyModule_Create(&definition));
  const Object type = taken(PyType_FromSpec(&spec));
  if (PyModule_AddObjectRef(module.ptr(), "Snapshot", type.ptr()) != 0) return nullptr;
  if (PyModule_AddStringConstant(module.ptr(), "torch_version", TORCH_VERSION) != 0) return nullptr;
  return module.release().ptr();
  END_HANDLE_TH_ERRORS
}
