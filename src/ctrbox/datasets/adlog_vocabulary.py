"""Defines the vocabulary of the synthetic ad log: words by topic and language, category paths and cities.

Plain data and the tables made of it; nothing here is random except the invented brand names, and those come
from a fixed seed, so a word has the same number in every log.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

LANGUAGES = ("en", "de", "es", "pl", "ru", "ja", "zh", "ar")
LANGUAGE_SHARE = (0.46, 0.12, 0.12, 0.09, 0.08, 0.05, 0.04, 0.04)

# topic, language, five words; the topic "any" goes with every other.
_LINES = """\
sport en shoes running football tennis bike
sport de laufschuhe fußball fahrrad turnen trikot
sport es zapatillas fútbol correr camiseta bicicleta
sport pl buty bieganie piłka rower koszulka
sport ru кроссовки футбол бег велосипед форма
sport ja 靴 サッカー 自転車 テニス 走る
sport zh 跑鞋 足球 自行车 网球 运动
sport ar حذاء كرة دراجة رياضة جري
travel en hotel flight beach island tickets
travel de urlaub flug strand reise insel
travel es viaje vuelo playa isla hotel
travel pl wakacje lot plaża wyspa bilety
travel ru отпуск билеты пляж остров отель
travel ja 旅行 航空券 海 島 ホテル
travel zh 旅游 机票 海滩 酒店 岛
travel ar سفر فندق طيران شاطئ جزيرة
fashion en dress jeans jacket bag watch
fashion de kleid jacke tasche uhr mode
fashion es vestido chaqueta bolso reloj moda
fashion pl sukienka kurtka torebka zegarek moda
fashion ru платье куртка сумка часы мода
fashion ja ドレス 時計 鞄 服 上着
fashion zh 裙子 外套 手表 包 时尚
fashion ar فستان حقيبة ساعة أزياء معطف
tech en phone laptop camera headphones charger
tech de handy rechner kamera kopfhörer ladegerät
tech es teléfono portátil cámara auriculares cargador
tech pl telefon komputer aparat słuchawki ładowarka
tech ru телефон ноутбук камера наушники зарядка
tech ja 携帯 パソコン カメラ 充電器 音
tech zh 手机 电脑 相机 耳机 充电器
tech ar هاتف حاسوب كاميرا سماعات شاحن
home en sofa lamp kitchen garden bed
home de sofa lampe küche garten bett
home es sofá lámpara cocina jardín cama
home pl kanapa lampa kuchnia ogród łóżko
home ru диван лампа кухня сад кровать
home ja ソファ 台所 庭 寝台 灯
home zh 沙发 台灯 厨房 花园 床
home ar أريكة مصباح مطبخ حديقة سرير
food en pizza coffee recipe vegan delivery
food de pizza kaffee rezept kuchen lieferung
food es pizza café receta tarta entrega
food pl pizza kawa przepis ciasto dostawa
food ru пицца кофе рецепт торт доставка
food ja ピザ 珈琲 料理 配達 菓子
food zh 披萨 咖啡 食谱 外卖 蛋糕
food ar بيتزا قهوة وصفة كعكة توصيل
auto en car tires insurance electric used
auto de auto reifen versicherung elektro gebraucht
auto es coche neumáticos seguro eléctrico usado
auto pl samochód opony ubezpieczenie elektryczny używany
auto ru машина шины страховка электро запчасти
auto ja 車 タイヤ 保険 電気 中古
auto zh 汽车 轮胎 保险 电动 二手
auto ar سيارة إطارات تأمين كهربائية مستعملة
finance en loan card bank savings rate
finance de kredit karte bank sparen zinsen
finance es préstamo tarjeta banco ahorro interés
finance pl pożyczka karta bank lokata procent
finance ru кредит карта банк вклад процент
finance ja ローン 銀行 貯金 金利 株
finance zh 贷款 银行 储蓄 利率 信用卡
finance ar قرض بطاقة بنك ادخار فائدة
games en game console puzzle strategy online
games de spiel konsole rätsel strategie würfel
games es juego consola puzle estrategia dados
games pl gra konsola zagadka strategia kostki
games ru игра приставка головоломка стратегия онлайн
games ja ゲーム 謎 戦略 対戦 札
games zh 游戏 主机 拼图 策略 在线
games ar لعبة منصة لغز استراتيجية نرد
health en vitamin yoga sleep dentist diet
health de vitamine yoga schlaf zahnarzt diät
health es vitamina yoga sueño dentista dieta
health pl witaminy joga sen dentysta dieta
health ru витамины йога сон стоматолог диета
health ja 栄養 睡眠 歯医者 健康 薬
health zh 维生素 瑜伽 睡眠 牙医 饮食
health ar فيتامين يوغا نوم أسنان حمية
music en guitar concert piano vinyl song
music de gitarre konzert klavier platte lied
music es guitarra concierto piano vinilo canción
music pl gitara koncert pianino płyta piosenka
music ru гитара концерт пианино пластинка песня
music ja 楽器 歌 演奏 弦 鍵盤
music zh 吉他 音乐会 钢琴 唱片 歌曲
music ar غيتار حفلة بيانو أسطوانة أغنية
kids en toy stroller diapers puppet school
kids de spielzeug kinderwagen windeln puppe schule
kids es juguete cochecito pañales muñeca escuela
kids pl zabawka wózek pieluchy lalka szkoła
kids ru игрушка коляска подгузники кукла школа
kids ja 玩具 人形 学校 絵本 積木
kids zh 玩偶 婴儿车 尿布 学生 积木
kids ar لعب عربة حفاضات دمية مدرسة
any en best cheap new sale free
any de beste günstig neu angebot gratis
any es mejor barato nuevo oferta gratis
any pl najlepszy tani nowy okazja darmowy
any ru лучший дешёвый новый скидка бесплатно
any ja 最高 安い 新しい 割引 無料
any zh 最好 便宜 新款 折扣 免费
any ar أفضل رخيص جديد عرض مجاني
"""
_WORDS = {(topic, language): words for topic, language, *words in map(str.split, _LINES.splitlines())}
TOPICS = tuple(dict.fromkeys(topic for topic, _ in _WORDS if topic != "any"))
TOPIC_SHARE = tuple(w / sum(range(8, 20)) for w in range(19, 7, -1))

# Six leaves a topic: topic/middle/leaf.
CATEGORIES = tuple(
    f"{topic}/{middle}"
    for topic, middles in {
        "sport": "shoes/running shoes/football shoes/hiking bikes/road bikes/city wear/teams",
        "travel": "hotels/city hotels/beach flights/short flights/long cars/rental tours/guided",
        "fashion": "women/dresses women/bags men/jackets men/jeans watches/classic watches/smart",
        "tech": "phones/new phones/used laptops/office laptops/gaming audio/headphones photo/cameras",
        "home": "living/sofas living/lamps kitchen/tools kitchen/large garden/plants bedroom/beds",
        "food": "delivery/pizza delivery/asian coffee/beans coffee/machines sweets/cakes vegan/boxes",
        "auto": "cars/new cars/used parts/tires parts/oil insurance/full insurance/basic",
        "finance": "loans/home loans/cash cards/credit cards/debit savings/fixed stocks/broker",
        "games": "mobile/puzzle mobile/strategy console/action console/sport pc/online board/family",
        "health": "food/vitamins food/diet care/dentist care/skin sport/yoga sleep/pillows",
        "music": "play/guitar play/piano live/concerts live/festivals vinyl/rock vinyl/jazz",
        "kids": "toys/blocks toys/dolls baby/strollers baby/diapers school/bags school/books",
    }.items()
    for middle in middles.split(" ")
)
LEAVES_PER_TOPIC = 6

COUNTRIES = ("US", "GB", "IN", "DE", "AT", "ES", "MX", "PL", "KZ", "JP", "TW", "EG")
COUNTRY_LANGUAGE = (0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7)
CITIES: tuple[tuple[str, ...], ...] = (
    ("New York", "San José", "Chicago", "Austin"),
    ("London", "Leeds", "Glasgow", "Stoke-on-Trent"),
    ("Mumbai", "दिल्ली", "Bengaluru", "Chennai"),
    ("Berlin", "München", "Köln", "Düsseldorf"),
    ("Wien", "Graz", "Linz", "Sankt Pölten"),
    ("Madrid", "Málaga", "A Coruña", "Sevilla"),
    ("Ciudad de México", "Mérida", "Puebla", "León"),
    ("Łódź", "Kraków", "Warszawa", "Gdańsk"),
    ("Алматы", "Астана", "Шымкент", "Тараз"),
    ("東京", "大阪", "京都", "札幌"),
    ("台北", "高雄", "臺中", "Tainan"),
    ("القاهرة", "الجيزة", "Alexandria", "أسوان"),
)

# Position 0 is the empty ending; half of all texts get none.
ENDINGS = (
    "",
    "!",
    "?",
    "...",
    " 🔥",
    " 👟",
    " 🇵🇱",
    " 👩‍👩‍👧",
    ", 50% off",
    " (2024)",
    " – now",
    "!!! 😍",
    ' "XL"',
)

_SYLLABLES = [
    "zo",
    "ra",
    "vex",
    "li",
    "no",
    "ka",
    "ty",
    "mu",
    "pel",
    "ix",
    "or",
    "da",
    "fen",
    "qu",
    "sto",
    "bri",
]
BRANDS_PER_TOPIC = 24


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every word once, numbered, with the pools that queries and titles draw from.

    `words[i]` is lower case; `pool[topic, language]` and `generic[language]` and `brands[topic]` hold word
    numbers. `surface` holds six spellings of every word, at `spelling * len(words) + word`: lower, Title and
    UPPER case, then the same with a leading space; one empty string follows as the last entry.
    """

    words: tuple[str, ...]
    pool: npt.NDArray[np.int16]  # (topic, language, 5)
    generic: npt.NDArray[np.int16]  # (language, 5)
    brands: npt.NDArray[np.int16]  # (topic, BRANDS_PER_TOPIC)
    surface: tuple[str, ...]


def _brands(count: int) -> list[str]:
    rng = np.random.default_rng(7)
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(_SYLLABLES[i] for i in rng.integers(0, len(_SYLLABLES), rng.integers(2, 4)))] = None
    return list(names)


def _spell(word: str, changed: str) -> str:
    # Only spellings that fold back: "ß".upper() is "SS", and an overlap counted on lower case would be lost.
    return changed if changed.lower() == word else word


@cache
def vocabulary() -> Vocabulary:
    """Return the vocabulary, which is built once per process."""
    number: dict[str, int] = {}

    def ids(words: list[str]) -> list[int]:
        return [number.setdefault(w, len(number)) for w in words]

    pool = [[ids(_WORDS[topic, language]) for language in LANGUAGES] for topic in TOPICS]
    generic = [ids(_WORDS["any", language]) for language in LANGUAGES]
    names = _brands(len(TOPICS) * BRANDS_PER_TOPIC)
    brands = [number.setdefault(name, len(number)) for name in names]
    words = tuple(number)
    lower = list(words)
    title = [_spell(w, w[:1].upper() + w[1:]) for w in words]
    upper = [_spell(w, w.upper()) for w in words]
    plain = lower + title + upper
    return Vocabulary(
        words=words,
        pool=np.array(pool, np.int16),
        generic=np.array(generic, np.int16),
        brands=np.array(brands, np.int16).reshape(len(TOPICS), BRANDS_PER_TOPIC),
        surface=tuple(plain + [" " + w for w in plain] + [""]),
    )
